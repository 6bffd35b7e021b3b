"""Tyler on vLLM against plain vLLM, on the same weights: tokens a second, the price of calls, memory of a token.

    VLLM_CPU_OMP_THREADS_BIND=nobind python benchmarks/on_vllm.py [--quick] [--batches 1 8 32] [--json out.json]

Needs an environment with vLLM (`make test-vllm` builds one) and, but for `--quick`, `tyler fetch smollm2`. Prompts are
random tokens; no answer ends early. Each engine runs in a process of its own, in turn, and a figure is the median of
the runs.

plain    vLLM's own class of the backbone
without  Tyler under Never: adapters beside the weights, our decisions
calls    Tyler with 5 calls in 300 tokens, against the same without
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness import Figure, Report, options, read

if TYPE_CHECKING:
    from tyler import Trajectory, Tyler
    from tyler.engine.vllm.engine import VllmEngine

PROMPT, NEW, LONG, CALLS, CALLING = 64, 64, 300, 5, 8
KV = 2**30
KINDS = ("plain", "without", "calls")
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Plain vLLM beside its caller too, as Tyler's engine has it."""


def prompts(batch: int, vocabulary: int, run: int) -> list[list[int]]:
    """Different for each row and run, so that no prefix is cached, and no special tokens, which are the first ids."""
    draw = random.Random(1000 * batch + run)
    return [[draw.randrange(100, vocabulary) for _ in range(PROMPT)] for _ in range(batch)]


def seconds(work: Callable[[int], object], runs: int) -> float:
    """The median of some runs, after one that warms up."""
    work(-1)
    taken = []
    for run in range(runs):
        started = time.perf_counter()
        work(run)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def of_plain(tyler: Tyler, given: argparse.Namespace, settings: dict[str, Any]) -> dict[str, float]:
    """Tokens a second of plain vLLM by batch."""
    from vllm import LLM, SamplingParams, TokensPrompt

    folder, most = tyler.backbone.exported(), max(given.batches)
    llm = LLM(folder, dtype="float32", max_num_seqs=most, kv_cache_memory_bytes=KV, **settings)
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)

    def answer(run: int) -> object:
        asked = [TokensPrompt(prompt_token_ids=ids) for ids in prompts(batch, tyler.backbone.vocab_size, run)]
        return llm.generate(asked, params, use_tqdm=False)

    figures = {}
    for batch in given.batches:
        figures[str(batch)] = batch * NEW / seconds(answer, given.rounds)
    return figures | {"KV of a position": position_bytes(llm.llm_engine)}


def of_tyler(tyler: Tyler, given: argparse.Namespace, settings: dict[str, Any]) -> dict[str, float]:
    """Tokens a second of Tyler by batch, or with calls and without; the bytes that a token takes, and what is fixed."""
    from tyler import Forced, Never, Request
    from tyler.engine import request_state
    from tyler.engine.vllm.engine import VllmEngine

    parts = (tyler.backbone, tyler.operators, tyler.policy, tyler.synthesizer)
    engine = VllmEngine(*parts, slots=max(*given.batches, CALLING), memory=KV, arguments=settings)
    request_state.end_ids = lambda *_: frozenset()  # no answer ends early, as plain vLLM's
    names = [operator.name for operator in tyler.operators]
    places = range(30, LONG, LONG // CALLS)
    calls = Forced({at: (names[number % len(names)],) for number, at in enumerate(places)})
    cases = [(str(batch), batch, Never(), NEW, NEW) for batch in given.batches]
    if given.kind == "calls":
        cases = [("none", CALLING, Never(), LONG, LONG), ("calls", CALLING, calls, LONG + len(places), LONG)]
    figures: dict[str, float] = {}
    answers: list[Trajectory] = []
    for name, batch, router, actions, tokens in cases:

        def decode(run: int, batch: int = batch, router: Any = router, actions: int = actions) -> None:
            asked = [Request(ids, router, max_new_tokens=actions) for ids in prompts(batch, engine.vocab_size, run)]
            answers[:] = engine.run(asked)

        figures[name] = batch * tokens / seconds(decode, given.rounds)
        assert all(answer.num_visible == tokens for answer in answers), "an answer ended early"
    one = position_bytes(engine._llm)
    return figures | {"KV of a position": one, "KV of a token": one * positions_of_a_token(answers), **fixed(engine)}


def position_bytes(llm: Any) -> float:
    """Bytes of KV that one position of one reader takes in all layers."""
    specs = llm.model_executor.get_kv_cache_specs()[0].values()
    return float(sum(spec.page_size_bytes / spec.block_size for spec in specs))


def positions_of_a_token(answers: list[Trajectory]) -> float:
    """Positions of both readers for each token of prompt and answer: tokens and latents for the policy, and for the
    synthesizer what its last call has read."""
    positions = tokens = 0
    for answer in answers:
        before = len(answer.prompt_ids)
        positions += before + answer.num_visible + answer.num_latents
        if answer.invocations:
            positions += before + answer.invocations[-1].position + answer.num_latents
        tokens += before + answer.num_visible
    return positions / tokens


def fixed(engine: VllmEngine) -> dict[str, float]:
    """Bytes beside backbone and KV, whatever is answered: adapters, operators and the table of latents."""
    (held,) = engine._llm.apply_model(added_bytes)
    return {"table of latents": held.pop("latents.table"), "adapters and operators": sum(held.values())}


def added_bytes(model: Any) -> dict[str, float]:
    """Of each buffer that a Tyler adds to the model of a worker."""
    return {
        name: float(buffer.nbytes)
        for name, buffer in model.named_buffers()
        if name.startswith("latents.") or name.endswith((".a", ".b"))
    }


def measure(given: argparse.Namespace) -> dict[str, float]:
    """What one kind of engine does, in this process."""
    from tyler import Tyler

    tyler = Tyler.from_pretrained(given.model, dtype="float32")
    settings = {"enforce_eager": given.eager, "max_model_len": min(1024, tyler.backbone.max_positions)}
    return (of_plain if given.kind == "plain" else of_tyler)(tyler, given, settings)


def figures(found: dict[str, dict[str, float]], batches: list[int]) -> Iterator[Figure]:
    """What the report says: tokens a second, the price of calls, and bytes."""
    plain, without, calls = (found[kind] for kind in KINDS)
    for batch in map(str, batches):
        yield Figure(f"batch {batch}", "plain", plain[batch], "tokens/s")
        yield Figure(f"batch {batch}", "Tyler", without[batch], "tokens/s")
        yield Figure(f"batch {batch}", "Tyler to plain", without[batch] / plain[batch], "")
    told = f"{CALLS} calls in {LONG} tokens"
    yield Figure(f"batch {CALLING}", f"{told} to none", calls["calls"] / calls["none"], "")
    yield Figure("KV of a token", "plain", plain["KV of a position"], "bytes")
    yield Figure("KV of a token", "without calls", without["KV of a token"], "bytes")
    yield Figure("KV of a token", told, calls["KV of a token"], "bytes")
    for name in ("adapters and operators", "table of latents"):
        yield Figure("fixed", name, calls[name] / 2**20, "MiB")


def main() -> None:
    """Each kind in a process of its own; then the ratios."""
    parser = options(__doc__)
    parser.add_argument("--model", default="smollm2-tyler")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    given = read(parser)
    if given.quick:  # a rehearsal
        given.model, given.batches, given.rounds, given.eager = "mini-tyler", [1, 8], 1, True
    if given.kind:
        print(json.dumps(measure(given)))
        return
    found: dict[str, Any] = {}
    for kind in KINDS:
        command = [sys.executable, *sys.argv, "--kind", kind]
        told = subprocess.run(
            command, env={**os.environ, **IN_PROCESS}, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        (line,) = [line for line in told.splitlines() if line.startswith("{")]  # vLLM prints there too
        found[kind] = json.loads(line)
    report = Report("on_vllm", given)
    report.add(figures(found, given.batches))
    report.publish(given.json)


if __name__ == "__main__":
    main()
