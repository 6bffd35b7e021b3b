"""Typed latent operators: the set O of the paper (Section 3.3) and nothing else.

An operator is a name and a number of latents. What it computes is learned (`synthesis.py`); where it may be trained or
invoked is its boundary rule (`placement.py`); when it is invoked is the policy's business (`policy.py`, `routing.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_LATENTS = 4096
"""More than any context has room for beside a problem; the paper's operators have 4 and 8."""


@dataclass(frozen=True)
class Operator:
    """O_k, Eq. (4)-(5): a named operator that turns the context x_t into `num_latents` (N_k) latents.

    `boundary` names the rule in `rules.RULES` that proposes positions for it; a new operator is one line of
    configuration plus, if it needs one, a new rule.
    """

    name: str
    num_latents: int
    boundary: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(f"operator name {self.name!r} is not an identifier; use letters, digits and underscores")
        if type(self.num_latents) is not int or not 1 <= self.num_latents <= MAX_LATENTS:
            raise ValueError(
                f"operator {self.name!r} has num_latents={self.num_latents!r}; a whole number from 1 to {MAX_LATENTS} "
                "is needed"
            )
        if not isinstance(self.boundary, str):
            raise ValueError(f"operator {self.name!r} has boundary={self.boundary!r}; give the name of a rule")


GLOBAL = Operator("global", num_latents=8, boundary="answer_start")
STATE = Operator("state", num_latents=4, boundary="step")
PROCEDURE = Operator("procedure", num_latents=4, boundary="structure")

PAPER_OPERATORS = (GLOBAL, STATE, PROCEDURE)
"""O = {O_g, O_s, O_p} with (N_g, N_s, N_p) = (8, 4, 4), Table of hyper-parameters."""


def check_operators(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """The operators as a tuple, in the order of their action ids V + k.

    Raises ValueError when two share a name: the name is the key of checkpoints, logs and reports.
    """
    checked = tuple(operators)
    names = [operator.name for operator in checked]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"operator names must differ, but {repeated} occur more than once in {names}")
    return checked
