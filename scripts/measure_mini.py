"""Measure the embedded backbone: greedy accuracy by family and level, alone and with blocks of foreign embeddings.

    python scripts/measure_mini.py --split dev --count 300 --blocks none start:junk start:cue start:results every:junk

A block kind is `none` or PLACE:CONTENT. PLACE is `start` (before the answer) or `every` (also after every blank line).
CONTENT is `junk` (noise of embedding scale), `tokens` (random tokens), `zero`, `cue` (the word for the target style),
or an oracle about the gold solution, at the start only: `ahead`, `results` or `ending`.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from tyler.tasks.mini import FAMILIES, equal, load
from tyler.tasks.problem import Problem

LENGTH = 6
"""Vectors in a block."""


class Measure:
    """Greedy decoding in embedding space, without a cache: blocks may fall anywhere and rows stay ragged."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, kind: str, seed: int) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.place, _, self.content = kind.partition(":")
        self.table = model.get_input_embeddings().weight.detach()
        self.rng, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.blank = tokenizer.convert_tokens_to_ids("ĊĊ")

    def block(self, problem: Problem) -> Tensor:
        """One block [latents, dim] for this problem."""
        shape = (LENGTH, self.table.shape[1])
        if self.content == "junk":
            return torch.randn(shape, generator=self.generator) * self.table.std()
        if self.content == "zero":
            return torch.zeros(shape)
        return self.table[self._tokens(problem)]

    def _tokens(self, problem: Problem) -> list[int]:
        if self.content == "tokens":
            return [self.rng.randrange(4, len(self.tokenizer)) for _ in range(LENGTH)]
        if self.content == "cue":
            return self.tokenizer.convert_tokens_to_ids(["Ġcareful"]) * LENGTH
        solution = problem.solution
        if self.content == "results":
            solution = "".join(re.findall(r" = (\d+)", solution))
        ids = self.tokenizer(solution).input_ids
        return ids[-LENGTH:] if self.content == "ending" else ids[:LENGTH]

    def prompt(self, problem: Problem) -> Tensor:
        chat = [{"role": "user", "content": problem.prompt}]
        text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        embedded = self.table[self.tokenizer(text).input_ids]
        return embedded if self.place == "none" else torch.cat([embedded, self.block(problem)])

    @torch.no_grad()
    def decode(self, problems: list[Problem], limit: int = 160) -> list[str]:
        """The visible text of each answer."""
        rows = [self.prompt(problem) for problem in problems]
        written: list[list[int]] = [[] for _ in problems]
        alive = list(range(len(rows)))
        for _ in range(limit):
            if not alive:
                break
            tokens = self._next([rows[i] for i in alive])
            pairs = zip(alive, tokens, strict=True)
            alive = [i for i, token in pairs if self._extend(problems[i], i, token, rows, written)]
        return [self.tokenizer.decode(ids) for ids in written]

    def _next(self, rows: list[Tensor]) -> list[int]:
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        last = torch.tensor([len(row) - 1 for row in rows])
        hidden = self.model.model(inputs_embeds=padded, use_cache=False).last_hidden_state
        return self.model.lm_head(hidden[torch.arange(len(rows)), last]).argmax(-1).tolist()

    def _extend(self, problem: Problem, i: int, token: int, rows: list[Tensor], written: list[list[int]]) -> bool:
        if token == self.tokenizer.eos_token_id:
            return False
        written[i].append(token)
        rows[i] = torch.cat([rows[i], self.table[[token]]])
        if self.place == "every" and token == self.blank:
            rows[i] = torch.cat([rows[i], self.block(problem)])
        return True


def boxed(text: str) -> str | None:
    found = re.findall(r"\\boxed\{([^}]*)\}", text)
    return found[-1] if found else None


def report(kind: str, problems: list[Problem], texts: list[str], seconds: float) -> None:
    answers = [boxed(text) for text in texts]
    right = [answer is not None and equal(answer, p.answer) for answer, p in zip(answers, problems, strict=True)]
    share = 100 * sum(right) / len(right)
    print(f"{kind}: {sum(right)}/{len(right)} = {share:.1f}%, no box {answers.count(None)}, {seconds:.0f} s")
    for family in FAMILIES:
        cells = []
        for level in sorted({p.level for p in problems}):
            hits = [ok for ok, p in zip(right, problems, strict=True) if (p.family, p.level) == (family, level)]
            cells.append(f"level {level}: {sum(hits)}/{len(hits)}")
        print(f"  {family:<11}" + "  ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("src/tyler/assets/mini"))
    parser.add_argument("--split", default="dev")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", nargs="+", default=["none"])
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    problems = load(args.split, count=args.count)
    for kind in args.blocks:
        started = time.perf_counter()
        measure = Measure(model, tokenizer, kind, args.seed)
        texts: list[str] = []
        for i in range(0, len(problems), args.batch):
            texts += measure.decode(problems[i : i + args.batch])
        report(kind, problems, texts, time.perf_counter() - started)


if __name__ == "__main__":
    main()
