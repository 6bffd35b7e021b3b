"""Where psi starts: a policy that invokes operators now and then at boundaries, and next to never elsewhere.

Deviation: the paper leaves the start of psi open. Zero or random rows give an operator a probability near e^-20, and
GRPO never samples what it could learn from. We fit psi alone, on states that the frozen policy visits when operators
are invoked at every boundary, so that O_k has probability `rate` where its rule proposes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tyler.config import sizes
from tyler.config.loops import CalibrationConfig
from tyler.config.schema import Config
from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.tasks import Problem
from tyler.training.micro_batches import CALIBRATION_ROWS
from tyler.training.replay import contexts_of

NO_OPERATOR = -1


@dataclass(frozen=True)
class Decisions:
    """States h_t of the frozen policy, the logsumexp of its token logits, and the operator proposed there."""

    hidden: Float[Tensor, "positions dim"]
    token_mass: Float[Tensor, "positions"]
    operator: Int[Tensor, "positions"]


def boundary_requests(model: Tyler, problems: Sequence[str | Problem], config: Config) -> list[Request]:
    """What is asked to see the policy's decisions: the first of the problems, every boundary's operator invoked."""
    seed, longest = seed_of(config.stage2.seed, "calibration"), config.stage2.max_new_tokens
    asked, temperature = problems[: config.stage2.calibration.num_problems], config.grpo.temperature
    samplings = [Sampling(temperature, seed=seed + index) for index in range(len(asked))]
    return [
        model.request(problem, router=AtBoundaries(), sampling=sampling, max_new_tokens=longest)
        for problem, sampling in zip(asked, samplings, strict=True)
    ]


@torch.no_grad()
def collect_decisions(model: Tyler, trajectories: Sequence[Trajectory]) -> Decisions:
    """Every decision of the policy in finished answers."""
    hidden, token_mass, operator = [], [], []
    for first in range(0, len(trajectories), CALIBRATION_ROWS):
        part = trajectories[first : first + CALIBRATION_ROWS]
        contexts, decided_at = contexts_of(model.backbone, part)
        embeds = pad_sequence(contexts, batch_first=True)
        states = model.policy.reference_decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state
        for row, trajectory in enumerate(part):
            chosen = states[row, decided_at[row]]
            hidden.append(chosen.float())
            token_mass.append(token_masses(chosen, model.backbone.head))
            actions = torch.tensor(trajectory.actions, dtype=torch.long, device=states.device)
            operator.append((actions - model.backbone.vocab_size).clamp(min=NO_OPERATOR))  # tokens have lower ids
    return Decisions(torch.cat(hidden), torch.cat(token_mass), torch.cat(operator))


def calibrate(model: Tyler, trajectories: Sequence[Trajectory], config: CalibrationConfig) -> dict[str, float]:
    """Start the model's psi on what its frozen policy decided in answers to `boundary_requests`; what it reached."""
    decisions = collect_decisions(model, trajectories)
    psi = fit_psi(decisions, len(model.operators), config)
    model.policy.psi.data.copy_(psi)
    return calibration_report(decisions, psi, [operator.name for operator in model.operators])


def token_masses(
    hidden: Float[Tensor, "positions dim"], head: Float[Tensor, "vocab dim"]
) -> Float[Tensor, "positions"]:
    """The logsumexp of the token logits, of which no more than `sizes.positions_at_once` allows exist at a time."""
    pieces = hidden.split(sizes.positions_at_once(len(head)))
    return torch.cat([nn.functional.linear(piece, head).float().logsumexp(-1) for piece in pieces])


def fit_psi(decisions: Decisions, num_operators: int, config: CalibrationConfig) -> Float[Tensor, "operators dim"]:
    """psi of least cross-entropy to `rate` on the proposed operator (0 elsewhere). Convex, so L-BFGS; no noise."""
    psi = torch.zeros(num_operators, decisions.hidden.shape[1], device=decisions.hidden.device, requires_grad=True)
    proposed = decisions.operator != NO_OPERATOR
    target = torch.zeros(len(decisions.operator), num_operators, device=psi.device)
    target[proposed, decisions.operator[proposed]] = config.rate
    optimizer = torch.optim.LBFGS([psi], max_iter=config.steps, line_search_fn="strong_wolfe", tolerance_change=1e-9)

    def loss() -> Tensor:
        optimizer.zero_grad()
        log_operators, log_tokens = operator_logprobs(decisions, psi)
        fit = -(target * log_operators).sum(-1) - (1 - target.sum(-1)) * log_tokens
        value = fit.mean() + config.weight_decay * psi.pow(2).sum()
        value.backward()
        return value

    optimizer.step(loss)
    return psi.detach()


def operator_logprobs(
    decisions: Decisions, psi: Tensor
) -> tuple[Float[Tensor, "positions operators"], Float[Tensor, "positions"]]:
    """log p of each operator and of all tokens together over V'."""
    logprobs = torch.cat([decisions.hidden @ psi.T, decisions.token_mass[:, None]], dim=-1).log_softmax(dim=-1)
    return logprobs[:, :-1], logprobs[:, -1]


@torch.no_grad()
def calibration_report(decisions: Decisions, psi: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Mean probability of each operator where its rule proposes it and of any where none does; NaN of no places."""
    probabilities = operator_logprobs(decisions, psi)[0].exp()
    at_boundaries = {
        f"calibration/{name}_at_boundaries": float(probabilities[decisions.operator == k, k].mean())
        for k, name in enumerate(names)
    }
    elsewhere = probabilities[decisions.operator == NO_OPERATOR].sum(-1)
    return at_boundaries | {"calibration/elsewhere": float(elsewhere.mean())}
