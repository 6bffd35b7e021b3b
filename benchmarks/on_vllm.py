"""Tyler on vLLM against plain vLLM, on the same weights: tokens a second, the price of calls, memory of a token.

    VLLM_CPU_OMP_THREADS_BIND=nobind python benchmarks/on_vllm.py [--batches 1 8 32] [--runs 5] [--json out.json]

Needs `tyler fetch smollm2` and an environment with vLLM (`make test-vllm` builds one). Prompts are random tokens; no
answer ends early. Each engine runs in a process of its own, in turn, and a figure is the median of the runs.

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
from collections.abc import Callable
from pathlib import Path

PROMPT, NEW, LONG = 64, 64, 300
KV = 2**30


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


def measure(kind: str, model: str, batches: list[int], runs: int, eager: bool) -> dict[str, float]:
    """Tokens a second by batch, in this process."""
    from tyler import Forced, Never, Request, Tyler

    tyler = Tyler.from_pretrained(model, dtype="float32")
    vocabulary, settings = tyler.backbone.vocab_size, {"enforce_eager": eager, "max_model_len": 1024}
    figures = {}
    if kind == "plain":
        from vllm import LLM, SamplingParams, TokensPrompt

        folder = tyler.backbone.exported()
        llm = LLM(folder, dtype="float32", max_num_seqs=max(batches), kv_cache_memory_bytes=KV, **settings)
        params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
        for batch in batches:

            def answer(run: int, batch: int = batch) -> object:
                asked = [TokensPrompt(prompt_token_ids=ids) for ids in prompts(batch, vocabulary, run)]
                return llm.generate(asked, params, use_tqdm=False)

            figures[str(batch)] = batch * NEW / seconds(answer, runs)
        return figures
    from tyler.engine import request_state
    from tyler.engine.vllm.engine import VllmEngine

    parts = (tyler.backbone, tyler.operators, tyler.policy, tyler.synthesizer)
    engine = VllmEngine(*parts, slots=max(batches), memory=KV, arguments=settings)
    request_state.end_ids = lambda *_: frozenset()  # no answer ends early, as plain vLLM's
    names = [operator.name for operator in tyler.operators]
    five = Forced({at: (names[place % len(names)],) for place, at in enumerate(range(30, LONG, 60))})
    cases = [("without", batch, Never(), NEW) for batch in batches]
    if kind == "calls":
        cases = [("none", 8, Never(), LONG), ("five", 8, five, LONG + 5)]
    for name, batch, router, actions in cases:

        def decode(run: int, batch: int = batch, router: object = router, actions: int = actions) -> object:
            asked = [Request(ids, router, max_new_tokens=actions) for ids in prompts(batch, vocabulary, run)]
            return engine.run(asked)

        tokens = batch * (NEW if kind == "without" else LONG)
        figures[str(batch) if kind == "without" else name] = tokens / seconds(decode, runs)
    figures["bytes of KV a position"] = float(sum(block_bytes(engine)))
    return figures


def block_bytes(engine: object) -> list[float]:
    """Bytes of KV that a position takes, by layer."""
    specs = engine._llm.model_executor.get_kv_cache_specs()[0]  # type: ignore[attr-defined]
    return [spec.page_size_bytes / spec.block_size for spec in specs.values()]


def main() -> None:
    """Each kind in a process of its own; then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-tyler")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--kind", choices=["plain", "without", "calls"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind:
        print(json.dumps(measure(given.kind, given.model, given.batches, given.runs, given.eager)))
        return
    found = {}
    for kind in ("plain", "without", "calls"):
        command = [sys.executable, *sys.argv, "--kind", kind]
        told = subprocess.run(command, env=os.environ, stdout=subprocess.PIPE, text=True, check=True).stdout
        (line,) = [line for line in told.splitlines() if line.startswith("{")]  # vLLM prints there too
        found[kind] = json.loads(line)
    for batch in map(str, given.batches):
        plain, ours = found["plain"][batch], found["without"][batch]
        print(
            f"batch {batch:>3}: plain {plain:7.1f} tokens/s, Tyler without calls {ours:7.1f}, ratio {ours / plain:.2f}"
        )
    none, five = found["calls"]["none"], found["calls"]["five"]
    print(f"5 calls in {LONG} tokens at batch 8: {five:.1f} against {none:.1f} tokens/s, ratio {five / none:.2f}")
    print(f"KV of a position: {found['calls']['bytes of KV a position']:.0f} bytes for each reader, as in plain vLLM")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
