"""Each of two tensor-parallel workers holds its part of the adapters: the parts together are the whole."""

import pytest
import torch
from torch import Tensor, nn

DIM, RANK = 64, 4


def path_of(kind: str, rank: int | None, adapter: dict[str, tuple[Tensor, Tensor]], kv_heads: int) -> nn.Module:
    """A linear map of vLLM on worker `rank` of two, or the only one, with the adapter as the synthesizer's."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor import parameter
    from vllm.model_executor.layers import linear

    from tyler.engine.vllm.low_rank import adapt, load_adapter

    with pytest.MonkeyPatch.context() as patch, set_current_vllm_config(VllmConfig()):
        for module in (linear, parameter):
            patch.setattr(module, "get_tensor_model_parallel_world_size", lambda: 1 if rank is None else 2)
            patch.setattr(module, "get_tensor_model_parallel_rank", lambda: rank or 0)
        made: nn.Module
        if kind == "qkv_proj":
            made = linear.QKVParallelLinear(DIM, 16, 4, kv_heads, bias=False, prefix=kind)
        elif kind == "gate_up_proj":
            made = linear.MergedColumnParallelLinear(DIM, [96, 96], bias=False, prefix=kind)
        else:
            made = linear.RowParallelLinear(DIM, DIM, bias=False, prefix=kind)
        model = nn.ModuleDict({"layer": nn.ModuleDict({kind: made})})
        adapt(model, list(adapter), RANK, torch.tensor([[0.0, 1.0]]).expand(8, 2), {})
        load_adapter(model, 1, {f"layer.{name}": maps for name, maps in adapter.items()})
    return made


def added(path: nn.Module, x: Tensor) -> Tensor:
    """What the low-rank path of a worker adds."""
    return x @ path.a[len(path.a) // 2 :].T @ path.b[:, path.b.shape[1] // 2 :].T  # type: ignore[operator, index]


def are_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() < 1e-4)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kind", ["qkv_proj", "gate_up_proj", "o_proj"])
def test_the_parts_of_two_workers_are_the_whole(kind: str, kv_heads: int) -> None:
    draw = torch.Generator().manual_seed(0)
    kv = 16 * kv_heads
    outputs = {
        "qkv_proj": {"q_proj": 64, "k_proj": kv, "v_proj": kv},
        "gate_up_proj": {"gate_proj": 96, "up_proj": 96},
        "o_proj": {"o_proj": DIM},
    }[kind]
    adapter = {
        name: (torch.randn(RANK, DIM, generator=draw), torch.randn(size, RANK, generator=draw))
        for name, size in outputs.items()
    }
    x = torch.randn(8, DIM, generator=draw)
    expected = {name: x @ a.T @ b.T for name, (a, b) in adapter.items()}
    whole = added(path_of(kind, None, adapter, kv_heads), x)
    assert are_close(whole, torch.cat(list(expected.values()), dim=-1))
    first, second = (path_of(kind, rank, adapter, kv_heads) for rank in (0, 1))
    if kind == "o_proj":
        parts = added(first, x[:, : DIM // 2]) + added(second, x[:, DIM // 2 :])
        assert are_close(parts, whole)
        return
    for place, output in enumerate(expected.values()):
        sizes = first.output_partition_sizes
        mine, theirs = (added(path, x).split(sizes, dim=-1)[place] for path in (first, second))
        if mine.shape[-1] == output.shape[-1]:  # one key head for both
            assert are_close(mine, output)
            assert are_close(theirs, output)
        else:
            assert are_close(torch.cat([mine, theirs], dim=-1), output)


def test_a_batch_without_calls_takes_the_columns_of_the_policy_alone() -> None:
    from tyler.engine.vllm.low_rank import load_adapter

    eta, phi = ((torch.randn(RANK, DIM), torch.randn(64, RANK)) for _ in range(2))
    path = path_of("qkv_proj", None, {"q_proj": phi}, 1)
    load_adapter(nn.ModuleDict({"layer": nn.ModuleDict({"qkv_proj": path})}), 0, {"layer.q_proj": eta})
    with torch.no_grad():
        path.weight.normal_()
        path.quant_method.process_weights_after_loading(path)
        x, read = torch.randn(6, DIM), {}
        for has_calls in (True, False):
            path.told = {"has_calls": has_calls}
            for reader in (0, 1):
                path.readers = torch.eye(2)[reader].expand(8, 2)
                read[has_calls, reader] = path(x)[0]
        assert are_close(read[True, 0], read[False, 0])
        assert torch.equal(read[False, 0], read[False, 1]), "no mask is read"
        assert (read[True, 0] - read[True, 1]).abs().max() > 1
