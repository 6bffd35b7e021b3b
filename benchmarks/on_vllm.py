"""Tyler on vLLM against plain vLLM, on the same weights: tokens a second, the price of calls, memory of a token.

    VLLM_CPU_OMP_THREADS_BIND=nobind python benchmarks/on_vllm.py [--quick] [--batches 1 8 32] [--json out.json]

Needs an environment with vLLM (`make test-vllm` builds one) and, but for `--quick`, `tyler fetch smollm2`. Prompts are
random tokens; no answer ends early. Plain vLLM and Tyler are two processes that take turns, case by case: the other is
stopped meanwhile, for its threads would spin.

batch N    Tyler under Never, with adapters beside the weights and our decisions, against vLLM's own class
5 calls    Tyler with 5 calls in 300 tokens, 8 answers at once, against itself without
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import Contest, Figure, Report, Work, compete, options, read
from models import Endless

if TYPE_CHECKING:
    from tyler import Trajectory, Tyler
    from tyler.engine.vllm.engine import VllmEngine

PROMPT, NEW, LONG, CALLS, CALLING = 64, 64, 300, 5, 8
KV = 2**30
KINDS = ("plain", "tyler")
ALONE = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "GOMP_SPINCOUNT": "300000"}
"""Plain vLLM beside its caller too, as Tyler's engine has it; threads of both wait as plain vLLM's do, by spinning."""
Bytes = dict[str, float]


@dataclass(frozen=True)
class Case:
    """What is decoded at once, and with how many calls in each answer."""

    batch: int
    tokens: int
    calls: int = 0


def prompts(batch: int, vocabulary: int, run: int) -> list[list[int]]:
    """Different for each row and run, so that no prefix is cached, and no special tokens, which are the first ids."""
    draw = random.Random(1000 * batch + run)
    return [[draw.randrange(100, vocabulary) for _ in range(PROMPT)] for _ in range(batch)]


def plain(
    tyler: Tyler, slots: int, settings: dict[str, Any]
) -> tuple[Callable[[Case, int], object], Callable[[], Bytes]]:
    """How vLLM's own class decodes a case, and the bytes of a token."""
    from vllm import LLM, SamplingParams, TokensPrompt

    settings |= {"dtype": tyler.backbone.dtype, "max_num_seqs": slots, "kv_cache_memory_bytes": KV}
    llm = LLM(tyler.backbone.exported(), skip_tokenizer_init=True, **settings)

    def answer(case: Case, run: int) -> object:
        params = SamplingParams(temperature=0, max_tokens=case.tokens, ignore_eos=True, detokenize=False)
        asked = [TokensPrompt(prompt_token_ids=ids) for ids in prompts(case.batch, tyler.backbone.vocab_size, run)]
        return llm.generate(asked, params, use_tqdm=False)

    return answer, lambda: {"KV of a token": position_bytes(llm.llm_engine)}


def ours(
    tyler: Tyler, slots: int, settings: dict[str, Any]
) -> tuple[Callable[[Case, int], object], Callable[[], Bytes]]:
    """How Tyler decodes a case, and the bytes that a token of the last one took and that are fixed."""
    from tyler import Forced, Never, Request
    from tyler.engine.vllm.engine import VllmEngine

    parts = (Endless.of(tyler.backbone), tyler.operators, tyler.policy, tyler.synthesizer)
    engine = VllmEngine(*parts, slots=slots, memory=KV, arguments=settings)
    names = [operator.name for operator in tyler.operators]
    answers: list[Trajectory] = []

    def answer(case: Case, run: int) -> None:
        places = range(30, case.tokens, case.tokens // case.calls) if case.calls else ()
        router = Forced({at: (names[nth % len(names)],) for nth, at in enumerate(places)}) if places else Never()
        most = case.tokens + case.calls
        asked = [Request(ids, router, max_new_tokens=most) for ids in prompts(case.batch, engine.vocab_size, run)]
        answers[:] = engine.run(asked)
        assert all(one.num_visible == case.tokens for one in answers), "an answer ended early"

    def held() -> Bytes:
        return {"KV of a token": position_bytes(engine._llm) * positions_of_a_token(answers), **fixed(engine)}

    return answer, held


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


def serve(given: argparse.Namespace) -> None:
    """Decode the cases that are named on stdin, and print the seconds of each; an empty line asks for bytes."""
    from tyler import Tyler

    tyler = Tyler.from_pretrained(given.model, dtype=given.dtype)
    settings = {"enforce_eager": given.eager, "max_model_len": min(1024, tyler.backbone.max_positions)}
    answer, held = (plain if given.kind == "plain" else ours)(tyler, max(*given.batches, CALLING), settings)
    for run, line in enumerate(sys.stdin):
        if not line.strip():
            print(json.dumps(held()), flush=True)
            continue
        started = time.perf_counter()
        answer(Case(*json.loads(line)), run)
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


class Side:
    """One kind of engine in a process of its own, which decodes when it is told to."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *sys.argv, "--kind", kind],
            env={**os.environ, **ALONE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def work(self, case: Case) -> Work:
        return lambda: self.told(json.dumps([case.batch, case.tokens, case.calls]))["seconds"]

    def told(self, line: str) -> Bytes:
        """What the process answers; vLLM prints to stdout too."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        print(line, file=self._process.stdin, flush=True)
        answer = next(json.loads(one) for one in self._process.stdout if one.startswith("{"))
        self._process.send_signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.communicate()


def contests(sides: dict[str, Side], batches: list[int]) -> Iterator[Contest]:
    """Both engines without calls, and Tyler with calls against Tyler without."""
    for batch in batches:
        ways = {kind: side.work(Case(batch, NEW)) for kind, side in sides.items()}
        yield Contest(f"batch {batch}", ways, batch * NEW, "tokens")
    tyler, name = sides["tyler"], f"batch {CALLING}, {LONG} tokens"
    ways = {f"{calls} calls": tyler.work(Case(CALLING, LONG, calls)) for calls in (0, CALLS)}
    yield Contest(name, ways, CALLING * LONG, "tokens")


def figures(sides: dict[str, Side]) -> Iterator[Figure]:
    """Bytes of a token, and those that are fixed."""
    for kind, side in sides.items():
        if kind == "tyler":  # the answers with calls, whichever came last
            side.work(Case(CALLING, LONG, CALLS))()
        for name, value in side.told("").items():
            yield Figure(name, kind, value, "bytes")


def main() -> None:
    """Both engines in turn; then bytes."""
    parser = options(__doc__)
    parser.add_argument("--model", default="smollm2-tyler")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    given = read(parser)
    if given.quick:  # a rehearsal
        given.model, given.batches, given.eager = "mini-tyler", [1, 8], True
    if given.kind:
        serve(given)
        return
    sides = {kind: Side(kind) for kind in KINDS}
    report = Report("on_vllm", given)
    report.add(compete(contests(sides, given.batches), given.rounds))
    report.add(figures(sides))
    report.publish(given.json)
    for side in sides.values():
        side.close()


if __name__ == "__main__":
    main()
