"""What vLLM is started with: the backbone's folder, our ids and adapters, and what a user hands through."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import vllm
from packaging.specifiers import SpecifierSet
from vllm.engine.arg_utils import EngineArgs

from tyler.engine.vllm.decisions import TURN
from tyler.engine.vllm.ids import Ids
from tyler.modeling.backbone import Backbone, dtype_name
from tyler.modeling.operators import Operator

OURS = (
    *("hf_overrides", "additional_config", "logits_processors", "logprobs_mode", "skip_tokenizer_init", "revision"),
    *("async_scheduling", "disable_log_stats"),
)
"""What Tyler needs to be as it is."""
REFUSED = {
    "pipeline_parallel_size": "latents need embeddings and hidden states in one place; use tensor_parallel_size",
    "speculative_config": "speculative decoding and Tyler's operators exclude each other",
    "enable_lora": "Tyler's adapters come with its checkpoint",
}
VERSIONS = ">=0.32,<0.33"
"""Of vLLM: `tests/engine/vllm/test_interfaces.py` names what is used of it."""
PLAIN_ROTATIONS = ("default", "llama3", "linear")
"""Rotary embeddings whose angles do not depend on how long a context may be."""


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for an argument that vLLM does not have, or that is not the user's, and for another vLLM."""
    if not SpecifierSet(VERSIONS).contains(found := vllm.__version__.partition("+")[0]):
        raise ValueError(f"vLLM {found} is installed, and Tyler is tested on {VERSIONS}: pip install 'vllm{VERSIONS}'")
    known = {one.name for one in fields(EngineArgs)} - set(OURS) | {"latents"}
    for name, value in arguments.items():
        if name in OURS:
            raise ValueError(f"--engine-args {name}: Tyler sets it itself; leave it out")
        if name not in known:
            hint = difflib.get_close_matches(name, known, n=1) or ["one that `vllm serve --help=all` lists"]
            raise ValueError(f"--engine-args {name}: vLLM has no such argument; did you mean {hint[0]}?")
        if name in REFUSED and (value is True or value not in (None, False, 1)):
            raise ValueError(f"--engine-args {name}={value}: {REFUSED[name]}; leave it out, or use engine 'native'")


def engine_args(
    backbone: Backbone,
    operators: tuple[Operator, ...],
    added: Mapping[str, Any],
    slots: int,
    memory: int | None,
    arguments: Mapping[str, Any],
) -> tuple[EngineArgs, Ids, int]:
    """vLLM's arguments, the ids of its model, and how many positions a context has.

    `added` is what our checkpoint adds (`weights.added_by`). `latents` among the arguments is the size of the table of
    latents: at least what one context holds.
    """
    check_arguments(arguments)
    given, config = dict(arguments), backbone.model.config
    rotation = (config.rope_parameters or {}).get("rope_type", "default")
    beyond = 1 if rotation in PLAIN_ROTATIONS and "max_model_len" not in given else 0
    length = int(given.setdefault("max_model_len", backbone.max_positions + beyond))
    positions = min(backbone.max_positions, length - 1)  # a request ends a position before vLLM's own end
    rows = int(given.pop("latents", 0) or max(positions, 64 * slots))
    if rows < positions:
        raise ValueError(
            f"latents={rows}; a context of {positions} positions may hold as many: give {positions} or more"
        )
    num_latents = [operator.num_latents for operator in operators]
    ids_settings: dict[str, Any] = {"vocab_size": backbone.vocab_size, "rows": rows, "num_latents": num_latents}
    ids = Ids(**ids_settings)
    overrides = {
        "architectures": [f"Tyler{type(backbone.model).__name__}"],
        "vocab_size": ids.size,
        "max_position_embeddings": max(backbone.max_positions + beyond, length if beyond else 0),
    }
    defaults = {
        "model": backbone.exported(),
        "dtype": dtype_name(backbone.dtype),
        "max_num_seqs": slots,
        "kv_cache_memory_bytes": memory,
        "seed": 0,
        "use_tqdm_on_load": False,
    }
    fixed = {
        "hf_overrides": overrides,
        "additional_config": {TURN: {**ids_settings, **added}},
        "logits_processors": ["tyler.engine.vllm.decisions:Decisions"],
        "logprobs_mode": "processed_logits",
        "skip_tokenizer_init": True,
        "revision": backbone.revision,
        "async_scheduling": False,
        "disable_log_stats": True,
    }
    graphs = {"compilation_config": with_piecewise_graphs(given)}
    return EngineArgs(**defaults | given | fixed | graphs), ids, positions


def with_piecewise_graphs(given: Mapping[str, Any]) -> dict[str, Any]:
    """The user's compilation settings with CUDA graphs that are piecewise, or none.

    A full graph records the whole forward pass once, and would skip the projection of queries in every later batch.
    Raises ValueError for full graphs.
    """
    compilation = dict(given.get("compilation_config") or {})
    mode = str(compilation.setdefault("cudagraph_mode", "PIECEWISE")).upper()
    if mode not in ("PIECEWISE", "NONE"):
        raise ValueError(f"compilation_config: cudagraph_mode={mode} skips operator calls; allowed: PIECEWISE, NONE")
    return compilation
