"""The plugin: decoder classes of vLLM that know operators. The backbone's own weights are loaded as vLLM loads them."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from vllm.config import VllmConfig
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from tyler.engine.sampling import NEVER
from tyler.engine.vllm.decisions import TURN
from tyler.engine.vllm.ids import Ids
from tyler.engine.vllm.low_rank import adapt, load_adapter
from tyler.modeling.additions import Additions


class Unrotated(nn.Module):
    """The rotary embedding of a layer that has none."""

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key


class SmolLM3ForCausalLM(LlamaForCausalLM):
    """SmolLM3: Llama with some layers that do not rotate queries and keys."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        for layer, rotates in zip(self.model.layers, self.config.no_rope_layers, strict=True):
            if not rotates:
                layer.self_attn.rotary_emb = Unrotated()


class Latents(nn.Module):
    """Q_k and Proj_k of every operator, psi, and the table of the latents that are in use."""

    queries: Tensor  # [S, dim]
    weight: Tensor  # [operators, dim, dim]
    bias: Tensor  # [S, dim]
    psi: Tensor  # [operators, dim]
    table: Tensor  # [rows, dim]
    map_weight: Tensor  # [dim, dim], where what the synthesizer reads is mapped
    map_bias: Tensor  # [dim]

    def __init__(self, ids: Ids, dim: int, dtype: torch.dtype, maps_input: bool) -> None:
        super().__init__()
        self.ids, self.maps_input = ids, maps_input
        self.operator_of = [k for k, count in enumerate(ids.num_latents) for _ in range(count)]
        for name, shape in {
            "queries": (max(1, ids.num_queries), dim),  # looked up in any batch, even without operators
            "weight": (len(ids.num_latents), dim, dim),
            "bias": (ids.num_queries, dim),
            "psi": (len(ids.num_latents), dim),
            **({"map_weight": (dim, dim), "map_bias": (dim,)} if maps_input else {}),
        }.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float32), persistent=False)
        self.register_buffer("table", torch.zeros(ids.rows, dim, dtype=dtype), persistent=False)

    def embed(self, ids: Tensor, embed_tokens: Callable[[Tensor], Tensor]) -> Tensor:
        """Embeddings [seq, dim] of latents and queries where `ids` name them, and of tokens elsewhere."""
        read = torch.where(ids >= self.ids.shift, ids - self.ids.shift, ids)
        is_query, is_latent = ids >= self.ids.first_query, read >= self.ids.first_latent
        latents = self.table[(read - self.ids.first_latent).clamp(min=0) % self.ids.rows]
        queries = self.queries[(ids - self.ids.first_query).clamp(min=0) % max(1, self.ids.num_queries)]
        embeds = torch.where(is_latent[:, None], latents, embed_tokens(read.clamp(max=self.ids.vocab_size - 1)))
        if self.maps_input:
            mapped = linear(embeds.float(), self.map_weight, self.map_bias).to(embeds.dtype)
            embeds = torch.where((ids >= self.ids.shift)[:, None], mapped, embeds)
        return torch.where(is_query[:, None], queries.to(embeds.dtype), embeds)

    def project(self, ids: Tensor, hidden: Tensor) -> None:
        """z = Proj_k(h) at every query, into its row of the table. Waits for the device: batches with calls alone."""
        positions = (ids >= self.ids.first_query).nonzero().squeeze(-1)
        places = ids[positions] - self.ids.first_query
        queries = (places % self.ids.num_queries).tolist()
        rows = places // self.ids.num_queries % self.ids.rows
        for operator in sorted({self.operator_of[query] for query in queries}):
            mine = [i for i, query in enumerate(queries) if self.operator_of[query] == operator]
            bias = self.bias[[queries[i] for i in mine]]
            z = hidden[positions[mine]].float() @ self.weight[operator].T + bias
            self.table[rows[mine]] = z.to(self.table.dtype)


def with_vocabulary(config: VllmConfig, vocab_size: int) -> VllmConfig:
    """The config as the backbone's own class knows it: `vocab_size` counts its tokens, not our ids."""
    own = copy.copy(config)
    own.model_config = copy.copy(config.model_config)
    plain = copy.deepcopy(config.model_config.hf_config)
    plain.vocab_size = vocab_size
    own.model_config.hf_config = own.model_config.hf_text_config = plain
    return own


def tyler_of(base: type[nn.Module]) -> type[nn.Module]:
    """A decoder class of vLLM that knows operators."""

    class Tyler(base):  # type: ignore[misc, valid-type]
        def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
            settings = vllm_config.additional_config[TURN]
            ids = Ids(**settings["ids"])
            super().__init__(vllm_config=with_vocabulary(vllm_config, ids.vocab_size), prefix=prefix)
            dtype, positions = vllm_config.model_config.dtype, vllm_config.scheduler_config.max_num_batched_tokens
            self.latents = Latents(ids, self.config.hidden_size, dtype, settings["maps_input"])
            self.register_buffer("readers", torch.zeros(positions, 2, dtype=dtype), persistent=False)
            adapt(self.model, settings["targets"], settings["rank"], self.readers, settings)
            self.told = settings

        def embed_input_ids(self, input_ids: Tensor) -> Tensor:
            return self.latents.embed(input_ids, super().embed_input_ids)

        def forward(self, input_ids: Tensor, positions: Tensor, *_: object, **__: object) -> Tensor:
            synthesizer = input_ids >= self.latents.ids.shift
            self.readers[: len(input_ids)] = torch.stack([~synthesizer, synthesizer], dim=-1)
            hidden = super().forward(None, positions, None, self.embed_input_ids(input_ids))
            if self.told.get("has_calls"):
                self.latents.project(input_ids, hidden)
            return hidden

        def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
            """Logits over V' in float32, and room for what a decision reports."""
            tokens = super().compute_logits(hidden_states)
            if tokens is None:
                return None
            operators = hidden_states.float() @ self.latents.psi.T
            report = operators.new_full((len(tokens), len(self.latents.ids.report)), NEVER)  # p = 0
            return torch.cat([tokens.float(), operators, report], dim=-1)

        def take_weights(self, added: Additions) -> None:
            """Copy weights to where they are: recorded graphs read the same memory."""
            load_adapter(self, added.reader, added.adapter)
            for name, tensor in added.tensors.items():
                self.latents.get_buffer(name).copy_(tensor)

        def read_rows(self, rows: list[int]) -> Tensor:
            """Latents [rows, dim], on the CPU."""
            return self.latents.table[rows].cpu()

        def write_rows(self, rows: list[int], latents: Tensor) -> None:
            """Put latents that were read back into the table."""
            self.latents.table[rows] = latents.to(self.latents.table)

    Tyler.__name__ = Tyler.__qualname__ = f"Tyler{base.__name__}"
    return Tyler


BASES: Sequence[type[nn.Module]] = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, SmolLM3ForCausalLM)
TylerLlamaForCausalLM, TylerQwen2ForCausalLM, TylerQwen3ForCausalLM, TylerSmolLM3ForCausalLM = map(tyler_of, BASES)
