"""The memory that a plan states against the tensors of a real step, for every training, with checkpointing as in the
presets: a step of few layers holds at most what is planned, and each further layer adds what is planned."""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tiny
from allocations import Allocations
from tyler.config.files import load_config
from tyler.modeling import attention
from tyler.planning import dry_run
from tyler.planning.dry_run import Meter, Phase, rehearse
from tyler.reasoners.table import TRAININGS

FEW, MANY = 2, 5
HELD = ("weights", "folded weights", "packed weights", "adapters and heads")
"""What is there before a step begins."""
SHAPE = {
    "hidden_size": 192,
    "intermediate_size": 528,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 1024,
}
"""Wide enough that what a layer keeps is not lost among small things."""


class OfTensors(Meter):
    """Measures what the operations of a phase allocate, in its thread."""

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        gc.collect()
        self.phases.append(phase := Phase(name))
        with Allocations() as allocations:
            yield phase
        phase.measured = allocations.peak


def steps(method: str, dtype: str, layers: int, folder: Path) -> dict[str, tuple[int, int]]:
    """What the steps of a rehearsal took and were planned to take, in bytes beside what was there before."""
    settings = tiny.config("qwen3").to_dict() | SHAPE | {"num_hidden_layers": layers}
    del settings["layer_types"]
    (folder / "config.json").write_text(json.dumps(settings))
    tiny.tokenizer().save_pretrained(folder)
    small = [f"backbone.dtype={dtype}", "stage1.batch_size=4", "grpo.group_size=4"]
    small += ["memgen.weaver_grpo.group_size=2", "memgen.trigger.group_size=4"]
    small += ["memgen.max_insertions=1", "stage2.calibration.steps=2"]
    report = rehearse(load_config("qwen3-4b", [f"backbone.id={folder}", *small]), folder, method, device="cpu")
    return {
        phase.name: (phase.measured, sum(size for part, size in phase.predicted.items() if part not in HELD))
        for phase in report.phases
        if phase.name.endswith("step")
    }


LOOSE = {"stage1": 1.35, "stage2": 1.26, "grpo": 1.26, "memgen": 1.75, "memgen-weaver-grpo": 1.75}
"""What is read in chunks is planned as if all positions were in the largest; all else is close to what is planned."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", [name for name in TRAININGS if name != "stage2"])
def test_a_step_holds_what_is_planned_and_each_layer_adds_what_is_planned(
    method: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "Meter", OfTensors)
    # as on a GPU: half precision on a CPU keeps float32 states
    monkeypatch.setattr(attention, "cache_dtype", lambda kept_in, device: kept_in)
    few, many = (steps(method, dtype, layers, tmp_path) for layers in (FEW, MANY))
    assert many.keys() == ({"stage1 step", "stage2 step"} if method == "stage1" else {f"{method} step"})
    for name, (measured, planned) in many.items():
        assert measured < planned < LOOSE.get(name.removesuffix(" step"), 1.1) * measured, name
        grown, expected = measured - few[name][0], planned - few[name][1]
        assert grown < 1.01 * expected < 2 * grown, name
