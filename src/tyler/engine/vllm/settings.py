"""What vLLM is started with: the backbone's folder, our ids and adapters, and what a user hands through."""

import difflib
from collections.abc import Container, Mapping, Sequence
from dataclasses import fields
from typing import Any

import psutil
import vllm
from packaging.specifiers import SpecifierSet
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform

from tyler.engine.vllm.decisions import TURN
from tyler.engine.vllm.ids import Ids
from tyler.modeling.backbone import Backbone, dtype_name
from tyler.modeling.operators import Operator

REFUSED = {
    "pipeline_parallel_size": "latents need embeddings and hidden states in one place; use tensor_parallel_size",
    "speculative_config": "speculative decoding and Tyler's operators exclude each other",
    "enable_lora": "Tyler's adapters come with its checkpoint",
}
VERSIONS = ">=0.32,<0.33"
"""Of vLLM: `tests/engine/vllm/test_interfaces.py` names what is used of it."""
GRAPHS: dict[str, Any] = {"cudagraph_mode": "PIECEWISE"}
"""A full CUDA graph would record one forward pass, and skip the projection of queries in every later batch."""
CPU_BLOCK = 32
"""Positions of a block of KV on a CPU, the fewest: those behind the last whole one are read again after a call."""
PLAIN_ROTATIONS = ("default", "llama3", "linear")
"""Rotary embeddings whose angles do not depend on how long a context may be."""


def check_arguments(arguments: Mapping[str, Any], fixed: Container[str]) -> None:
    """Raise ValueError for an argument that vLLM does not have, or that is not the user's, and for another vLLM."""
    if not SpecifierSet(VERSIONS).contains(found := vllm.__version__.partition("+")[0]):
        raise ValueError(f"vLLM {found} is installed, and Tyler is tested on {VERSIONS}: pip install 'vllm{VERSIONS}'")
    known = {one.name for one in fields(EngineArgs) if one.name not in fixed} | {"latents"}
    for name, value in arguments.items():
        if name in fixed:
            raise ValueError(f"--engine-args {name}: Tyler sets it itself; leave it out")
        if name not in known:
            hint = difflib.get_close_matches(name, known, n=1) or ["one that `vllm serve --help=all` lists"]
            raise ValueError(f"--engine-args {name}: vLLM has no such argument; did you mean {hint[0]}?")
        if name in REFUSED and (value is True or value not in (None, False, 1)):
            raise ValueError(f"--engine-args {name}={value}: {REFUSED[name]}; leave it out, or use engine 'native'")
    graphs = GRAPHS | (arguments.get("compilation_config") or {})
    if (mode := str(graphs["cudagraph_mode"]).upper()) not in ("PIECEWISE", "NONE"):
        raise ValueError(f"compilation_config: cudagraph_mode={mode} skips operator calls; allowed: PIECEWISE, NONE")


def engine_args(
    backbone: Backbone, operators: Sequence[Operator], added: Mapping[str, Any], arguments: Mapping[str, Any]
) -> tuple[EngineArgs, Ids, int]:
    """vLLM's arguments, the ids of its model, and how many positions a context has.

    `added` is what our checkpoint adds (`added_by`). `latents` among the arguments is the size of the table of
    latents: at least what one context holds.
    """
    fixed: dict[str, Any] = {
        "logits_processors": ["tyler.engine.vllm.decisions:Decisions"],
        "logprobs_mode": "processed_logits",
        "skip_tokenizer_init": True,
        "revision": backbone.revision,
        "async_scheduling": False,
    }
    check_arguments(arguments, {*fixed, "hf_overrides", "additional_config"})
    rotation = (backbone.model.config.rope_parameters or {}).get("rope_type", "default")
    beyond = 1 if rotation in PLAIN_ROTATIONS and "max_model_len" not in arguments else 0
    defaults = {
        "model": backbone.exported(),
        "dtype": dtype_name(backbone.dtype),
        "max_model_len": backbone.max_positions + beyond,
    }
    arguments = {name: value for name, value in arguments.items() if value is not None}
    if current_platform.is_cpu():
        defaults["block_size"] = CPU_BLOCK
        if "gpu_memory_utilization" not in arguments:  # vLLM's own share is of all memory, not of what is free
            defaults["kv_cache_memory_bytes"] = psutil.virtual_memory().available // 4
    given = {**defaults, **arguments, "compilation_config": GRAPHS | arguments.get("compilation_config", {})}
    length = int(given["max_model_len"])
    positions = min(backbone.max_positions, length - 1)  # a request ends a position before vLLM's own end
    rows = int(given.pop("latents", 0)) or max(positions, 64 * given["max_num_seqs"])
    if rows < positions:
        raise ValueError(f"latents={rows}, and one context may hold {positions}; give {positions} or more")
    ids = Ids(backbone.vocab_size, [operator.num_latents for operator in operators], rows)
    fixed["hf_overrides"] = {
        "architectures": [f"Tyler{type(backbone.model).__name__}"],
        "vocab_size": ids.size,
        "max_position_embeddings": max(backbone.max_positions + beyond, length if beyond else 0),
    }
    fixed["additional_config"] = {TURN: {"ids": ids.settings, **added}}
    return EngineArgs(**given | fixed), ids, positions
