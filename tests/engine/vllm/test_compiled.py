"""Compiled, and with quantised weights: in a process of its own, since these tests switch compilation off."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from tyler.model import Tyler

arguments = {{"kv_cache_memory_bytes": 2**26, **{arguments}}}
native = Tyler.from_pretrained("mini-tyler", dtype="float32")
model = native.with_engine("vllm", **arguments)
problems = ["Ben has 99 books. He sells 10. How many are left?", "Find x when $5x - 2 = 433$."]
for settings in ({{}}, {{"router": "boundaries"}}, {{"budget": 1}}):
    one, other = (m.solve(problems, max_new_tokens=60, **settings) for m in (native, model))
    equal = [t.actions for t in one] == [t.actions for t in other]
    print("equal" if equal else "differs", sum(t.num_invocations for t in other), [t.finish_reason for t in other])
model.shared_engine.close()
"""


def told(arguments: str) -> list[str]:
    """What a process says of mini-tyler's answers on vLLM with these arguments, against the native engine's."""
    environment = {key: value for key, value in os.environ.items() if key != "TORCHDYNAMO_DISABLE"}
    program = [sys.executable, "-c", PROGRAM.format(arguments=arguments)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line.startswith(("equal", "differs"))]


def test_compiled_answers_equal_the_native_engines() -> None:
    lines = told('{"compilation_config": {"mode": 3, "cudagraph_mode": "NONE"}}')
    assert len(lines) == 3 and all(line.startswith("equal") for line in lines), lines


@pytest.mark.parametrize("quantization", ["fp8"])
def test_a_quantised_backbone_answers(quantization: str) -> None:
    """Rounding decides some actions; calls, and the ends of answers, are made as ever."""
    arguments = {"quantization": quantization, "dtype": "bfloat16", "enforce_eager": True}
    lines = told(repr(arguments))
    assert len(lines) == 3 and int(lines[1].split()[1]) > 0, lines
