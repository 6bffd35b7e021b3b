"""The numbers of an architecture that memory depends on, and its parameters. Without torch, for plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tyler.config.sections import LoraConfig
from tyler.modeling.architectures import DEFAULTS, FAMILIES, biased_maps, siblings
from tyler.modeling.operators import Operator

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Shape:
    """The numbers of an architecture that memory depends on."""

    layers: int
    dim: int
    intermediate: int
    attention: int
    key_value: int
    head_dim: int
    vocab: int
    tied: bool
    biased: frozenset[str]
    """The linear maps that have a bias."""
    qk_norm: bool

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Shape:
        return cls.read(config.to_dict())

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Shape:
        """The shape that a `config.json` states, with the family's own defaults for what it leaves out.

        Raises ValueError for a setting that is missing and has no default.
        """
        family = FAMILIES[settings["model_type"]]
        settings = {**DEFAULTS, **family.defaults, **settings}
        try:
            heads, dim = settings["num_attention_heads"], settings["hidden_size"]
            head_dim = settings["head_dim"] or dim // heads
            return cls(
                layers=settings["num_hidden_layers"],
                dim=dim,
                intermediate=settings["intermediate_size"],
                attention=heads * head_dim,
                key_value=(settings["num_key_value_heads"] or heads) * head_dim,
                head_dim=head_dim,
                vocab=settings["vocab_size"],
                tied=settings["tie_word_embeddings"],
                biased=biased_maps(settings),
                qk_norm=family.qk_norm,
            )
        except KeyError as error:
            raise ValueError(
                f"the backbone's config.json has no {error.args[0]!r}, and memory depends on it"
            ) from error

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of every linear map in a layer."""
        d, i, a, k = self.dim, self.intermediate, self.attention, self.key_value
        return {
            "q_proj": (d, a), "k_proj": (d, k), "v_proj": (d, k), "o_proj": (a, d),
            "gate_proj": (d, i), "up_proj": (d, i), "down_proj": (i, d),
        }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- parameters


@dataclass(frozen=True)
class Parameters:
    """How many parameters there are, by part. Stage 1 trains phi, queries and projections; Stage 2 eta and psi."""

    backbone: int
    phi: int
    queries: int
    projections: int
    eta: int
    psi: int
    adapted: int
    """Weights of the backbone that a LoRA sits on, and those multiplied with them: a folded view has its own copy."""

    @property
    def stage1(self) -> int:
        return self.phi + self.queries + self.projections

    @property
    def stage2(self) -> int:
        return self.eta + self.psi


def count_parameters(shape: Shape, lora: LoraConfig, operators: Sequence[Operator]) -> Parameters:
    """Exact counts.

    Backbone: V d (twice where the head is not tied) + d + L (2 d + linear maps and their biases + 2 head_dim where
    queries and keys are normalized). LoRA: L r (inputs + outputs) over the adapted maps. An operator: N_k d queries,
    d^2 + d projection; psi: d for each.
    """
    linear = shape.projections
    layer = 2 * shape.dim + sum(inputs * outputs for inputs, outputs in linear.values())
    layer += sum(linear[name][1] for name in shape.biased) + 2 * shape.head_dim * shape.qk_norm
    own = {sibling for name in lora.target_modules for sibling in siblings(name)}
    adapter = adapter_size(shape, lora)
    return Parameters(
        backbone=shape.vocab * shape.dim * (1 if shape.tied else 2) + shape.dim + shape.layers * layer,
        phi=adapter,
        queries=sum(operator.num_latents for operator in operators) * shape.dim,
        projections=len(operators) * (shape.dim**2 + shape.dim),
        eta=adapter,
        psi=len(operators) * shape.dim,
        adapted=shape.layers * sum(inputs * outputs for inputs, outputs in (linear[name] for name in sorted(own))),
    )


def adapter_size(shape: Shape, lora: LoraConfig) -> int:
    """Parameters of one LoRA: L r (inputs + outputs) over its maps."""
    return shape.layers * lora.rank * sum(sum(shape.projections[name]) for name in lora.target_modules)
