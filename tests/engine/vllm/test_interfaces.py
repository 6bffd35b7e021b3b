"""Every interface of vLLM that is used here: a version without one of them fails in this file, and not in an answer."""

import inspect
from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points

import pytest
from packaging.specifiers import SpecifierSet

USED = {
    "vllm.engine.arg_utils": {"EngineArgs": ["create_engine_config"]},
    "vllm.v1.engine.llm_engine": {
        "LLMEngine": [
            "add_request", "abort_request", "step", "apply_model", "reset_prefix_cache", "sleep", "wake_up",
            "is_sleeping", "get_num_unfinished_requests",
        ]
    },
    "vllm.v1.executor": {"Executor": ["get_class"]},
    "vllm.v1.sample.logits_processor": {
        "LogitsProcessor": ["apply", "update_state", "is_argmax_invariant"],
        "BatchUpdate": [],
    },
    "vllm.v1.sample.logits_processor.builtin": {"process_dict_updates": []},
    "vllm.model_executor.layers.linear": {
        "LinearBase": ["forward"],
        "QKVParallelLinear": ["forward"],
        "MergedColumnParallelLinear": ["forward"],
    },
    "vllm.model_executor.models.llama": {"LlamaForCausalLM": ["forward", "compute_logits", "embed_input_ids"]},
    "vllm.model_executor.models.qwen2": {"Qwen2ForCausalLM": ["forward", "compute_logits", "embed_input_ids"]},
    "vllm.model_executor.models.qwen3": {"Qwen3ForCausalLM": ["forward", "compute_logits", "embed_input_ids"]},
    "vllm": {"ModelRegistry": ["register_model"], "SamplingParams": ["clone"]},
    "vllm.inputs": {"TokensPrompt": []},
    "vllm.outputs": {"RequestOutput": []},
    "vllm.distributed": {"tensor_model_parallel_all_reduce": []},
}  # fmt: skip


@pytest.mark.parametrize("module", USED)
def test_every_name_is_there(module: str) -> None:
    for name, members in USED[module].items():
        used = getattr(import_module(module), name)
        assert not [member for member in members if not callable(getattr(used, member, None))]


def test_the_installed_version_is_in_the_stated_range() -> None:
    from tyler.engine.vllm.settings import VERSIONS

    assert SpecifierSet(VERSIONS).contains(import_module("vllm").__version__.partition("+")[0])


def test_arguments_are_what_they_were() -> None:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

    ours = {
        "model", "dtype", "max_num_seqs", "max_model_len", "kv_cache_memory_bytes", "hf_overrides", "revision",
        "additional_config", "logits_processors", "logprobs_mode", "skip_tokenizer_init", "async_scheduling",
        "compilation_config", "enable_sleep_mode", "tensor_parallel_size", "quantization",
        "block_size",
    }  # fmt: skip
    assert ours <= {field.name for field in fields(EngineArgs)}
    asked = {"extra_args", "logprob_token_ids", "stop_token_ids", "output_kind", "detokenize", "ignore_eos"}
    assert asked <= set(SamplingParams.__struct_fields__)
    assert {"prompt_token_ids", "cache_salt"} <= TokensPrompt.__required_keys__ | TokensPrompt.__optional_keys__
    assert list(inspect.signature(LogitsProcessor.__init__).parameters) == [
        "self", "vllm_config", "device", "is_pin_memory",
    ]  # fmt: skip
    assert {field.name for field in fields(BatchUpdate)} == {"batch_size", "removed", "added", "moved"}
    assert {"vllm_config", "executor_class", "log_stats", "multiprocess_mode"} <= set(
        inspect.signature(LLMEngine.__init__).parameters
    )


def test_the_plugin_is_found_by_its_entry_point() -> None:
    (plugin,) = entry_points(group="vllm.general_plugins", name="tyler")
    assert plugin.load().__module__ == "tyler.engine.vllm"


@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "full"])
def test_full_cuda_graphs_which_would_skip_operator_calls_are_refused(mode: str) -> None:
    from tyler.engine.vllm.settings import check_arguments

    check_arguments({"compilation_config": {"mode": 0}}, ())
    with pytest.raises(ValueError, match=f"{mode.upper()} skips operator calls; allowed: PIECEWISE, NONE"):
        check_arguments({"compilation_config": {"cudagraph_mode": mode}}, ())


def test_the_settings_of_a_request_are_those_that_are_followed_or_refused() -> None:
    """A new one is added to what this engine follows, or to what it refuses: none is ignored."""
    from tyler.engine.request import Request
    from tyler.engine.sampling import Sampling
    from tyler.engine.vllm.engine import VllmEngine

    followed = {
        *("prompt_ids", "router", "sampling", "budget", "max_new_tokens", "max_generated", "stop", "stop_token_ids"),
        *("logits", "operator_probs"),
    }
    assert {one.name for one in fields(Request)} == followed | set(VllmEngine.refused)
    assert {one.name for one in fields(Sampling)} == {"temperature", "top_k", "top_p", "seed"}
