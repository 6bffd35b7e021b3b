"""Pretrain `mini`, the embedded backbone, on the generated corpus of `tyler.tasks.mini` and save it in HF format.

    OMP_NUM_THREADS=2 python scripts/pretrain_mini.py --out src/tyler/assets/mini

Constants and defaults are the recipe of the shipped weights. Products run at `medium` precision for speed, so two
machines agree in what is learned but not bit by bit.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tyler.tasks.mini.puzzle import STYLES
from tyler.tasks.mini.science import LETTERS
from tyler.tasks.mini.tokenizer import CUES, build
from tyler.tasks.mini.world import corpus

IGNORED = -100
MIXED = 3
"""A block vector is the sum of at most this many token embeddings."""

SEED = 0
MUON_RATE, ADAM_RATE = 0.02, 3e-3
CHUNKS = 4
"""Chunks of like length that a step is split into."""
DECAY = 0.45
"""The share of the steps over which the rates fall."""
BLOCKS_FROM = 0.62
"""The share of the steps before foreign blocks appear."""
LETTER_WEIGHT = 2.0
"""Of the letters of options in the loss."""


@dataclass(frozen=True)
class Text:
    """One tokenized example: the prompt in its chat template, the completion with its end, and its style's cue."""

    prompt: list[int]
    completion: list[int]
    cue: int


@dataclass
class Row:
    """One training sequence: token ids, labels, and for block positions the tokens they mix, their scale and noise."""

    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    mixed: list[tuple[int, ...]] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)

    def visible(self, token: int, label: int) -> None:
        self._append(token, label, (token,), 1.0, 0.0)

    def foreign(self, tokens: tuple[int, ...], scale: float, noise: float) -> None:
        self._append(-1, IGNORED, tokens, scale, noise)

    def _append(self, token: int, label: int, mixed: tuple[int, ...], scale: float, noise: float) -> None:
        self.ids.append(token)
        self.labels.append(label)
        self.mixed.append(mixed)
        self.scale.append(scale)
        self.noise.append(noise)


class Blocks:
    """Foreign embeddings in the middle of a text: previews of what comes, and junk."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.vocab_size = len(tokenizer)
        self.first = 4  # after the special tokens
        ids = tokenizer.get_vocab()
        self.pad = tokenizer.pad_token_id
        self.paragraph, self.fence, self.end = ids["ĊĊ"], ids["```"], tokenizer.eos_token_id
        self.dollars = {ids["$"], ids["Ġ$"]}
        self.keys = {(ids["{"], ids['"']), (ids['",'], ids['Ġ"'])}
        self.equals = ids["Ġ="]
        self.digits = {ids[str(d)] for d in range(10)} | {ids[f"Ġ{d}"] for d in range(10)}

    def boundaries(self, completion: list[int]) -> list[int]:
        """Positions a block may precede: the start, after a blank line, before a formula, a fence or a JSON key."""
        found, opened = [0], False
        for i, token in enumerate(completion[:-1]):
            opens = token in self.dollars or token == self.fence
            after_blank = i > 0 and completion[i - 1] == self.paragraph
            if i > 0 and (after_blank or (opens and not opened) or (completion[i - 1], token) in self.keys):
                found.append(i)
            opened ^= opens
        return found

    def results(self, completion: list[int], start: int) -> list[int]:
        """The digits that follow an equals sign from `start` on."""
        taken, after = [], False
        for token in completion[start:]:
            after = token == self.equals or (after and token in self.digits)
            if after and token in self.digits:
                taken.append(token)
        return taken

    def preview(self, text: Text, start: int, length: int, rng: random.Random) -> list[tuple[int, ...]]:
        """At most `length` vectors about what comes after `start`; often with the style's cue among them."""
        completion = text.completion
        kind = rng.choice(("ahead", "ahead", "ending", "mixed", "results", "cue"))
        window = completion[start : start + 10 + length]
        if kind == "ahead":
            skip = rng.randint(0, 2)
            vectors = [(token,) for token in window[skip : skip + length]]
        elif kind == "ending":
            vectors = [(token,) for token in completion[max(start, len(completion) - length - 1) : -1]]
        elif kind == "mixed":
            vectors = [tuple(rng.sample(window, min(len(window), rng.randint(1, MIXED)))) for _ in range(length)]
        elif kind == "results":
            vectors = [(token,) for token in self.results(completion, start)[:length]]
        else:
            vectors = [(text.cue,)] * length
        if rng.random() < 0.4 and vectors:
            vectors[rng.randrange(len(vectors))] = (text.cue,)
        return vectors

    def junk(self, length: int, rng: random.Random) -> list[tuple[int, ...]]:
        """`length` vectors that say nothing: pure noise, or embeddings of random tokens."""
        if rng.random() < 0.6:
            return [()] * length
        return [(rng.randrange(self.first, self.vocab_size),) for _ in range(length)]

    def block(self, row: Row, text: Text, start: int, rng: random.Random) -> None:
        length = rng.randint(2, 8)
        preview = rng.random() < 0.6
        vectors = self.preview(text, start, length, rng) if preview else self.junk(length, rng)
        scale, noise = rng.uniform(0.6, 1.4), rng.uniform(0.0, 0.4)
        for tokens in vectors:
            row.foreign(tokens, scale, noise if tokens else scale)

    def chosen(self, completion: list[int], rng: random.Random) -> set[int]:
        """Where this text gets blocks: nowhere, at the start only, at some boundaries, or at all of them."""
        places = self.boundaries(completion)
        kind = rng.random()
        if kind < 0.3:
            return set()
        if kind < 0.5:
            return {0}
        if kind < 0.85:
            return set(rng.sample(places, rng.randint(1, min(len(places), 5)))) | ({0} if rng.random() < 0.6 else set())
        return set(places)

    def row(self, text: Text, rng: random.Random, *, places: set[int]) -> Row:
        """The training sequence of a text with blocks before the given positions of its completion."""
        row = Row()
        for token in text.prompt:
            row.visible(token, IGNORED)
        for i, token in enumerate(text.completion):
            if i in places:
                self.block(row, text, i, rng)
            row.visible(token, token)
        return row


def tokenize(tokenizer: PreTrainedTokenizerFast, count: int) -> list[Text]:
    """The corpus as token ids, in the order of its curriculum."""
    examples = list(corpus(SEED, count))
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": e.prompt}], tokenize=False, add_generation_prompt=True
        )
        for e in examples
    ]
    prompts = tokenizer(chats)["input_ids"]
    completions = tokenizer([e.completion for e in examples])["input_ids"]
    cues = dict(zip(STYLES, tokenizer.convert_tokens_to_ids([f"Ġ{cue}" for cue in CUES]), strict=True))
    return [
        Text(p, [*c, tokenizer.eos_token_id], cues[e.style])
        for p, c, e in zip(prompts, completions, examples, strict=True)
    ]


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A Qwen3 decoder with 1/sqrt(fan_in) weights and tied embeddings."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[1]))
    return model


def collate(rows: list[Row], pad: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Right-padded: labels, mixed token ids, their weights, noise [batch seq ...], and where block vectors are."""
    length = -(-max(len(row.ids) for row in rows) // 8) * 8
    labels = torch.full((len(rows), length), IGNORED)
    mixed = torch.full((len(rows), length, MIXED), pad)
    weight = torch.zeros(len(rows), length, MIXED)
    noise = torch.zeros(len(rows), length)
    foreign = torch.zeros(len(rows), length, dtype=torch.bool)
    for b, row in enumerate(rows):
        size = len(row.ids)
        labels[b, :size] = torch.tensor(row.labels)
        noise[b, :size] = torch.tensor(row.noise)
        foreign[b, :size] = torch.tensor(row.ids) < 0
        padded = [(tokens + (pad,) * MIXED)[:MIXED] for tokens in row.mixed]
        share = [
            tuple(s / math.sqrt(len(t)) if j < len(t) else 0.0 for j in range(MIXED))
            for t, s in zip(row.mixed, row.scale, strict=True)
        ]
        mixed[b, :size] = torch.tensor(padded)
        weight[b, :size] = torch.tensor(share)
    return labels, mixed, weight, noise, foreign


def loss_of(model: Qwen3ForCausalLM, batch: tuple[Tensor, ...], weights: Tensor, generator: torch.Generator) -> Tensor:
    """Cross-entropy of the completions' visible tokens, summed with a weight [vocab] per token."""
    labels, mixed, weight, noise, foreign = batch
    table = model.get_input_embeddings()
    if foreign.any():
        vectors = (table.weight.detach()[mixed] * weight[..., None]).sum(2)
        spread = table.weight.detach().std()
        vectors = vectors + noise[..., None] * spread * torch.randn(vectors.shape, generator=generator)
        embeddings = torch.where(foreign[..., None], vectors, table(mixed[..., 0]))
    else:
        embeddings = table(mixed[..., 0])
    hidden = model.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state[:, :-1]
    wanted = labels[:, 1:]
    known = wanted != IGNORED
    return cross_entropy(model.lm_head(hidden[known]), wanted[known], weights, reduction="sum")


def schedule(step: int, steps: int) -> float:
    """Warm up over 40 steps, stay, and fall linearly to 2% over the last DECAY of the steps."""
    return min(1.0, (step + 1) / 40, 0.02 + 0.98 * (steps - step) / (DECAY * steps))


def chunks(texts: list[Text], count: int) -> list[list[Text]]:
    """One step's texts, split by length into `count` chunks: little padding, yet every step sees a fair sample."""
    ordered = sorted(texts, key=lambda text: len(text.prompt) + len(text.completion))
    size = -(-len(ordered) // count)
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def optimizers_of(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, Adam for the embeddings and norms; each group remembers its full rate as `peak`."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon([{"params": matrices, "peak": MUON_RATE}], lr=MUON_RATE, weight_decay=0.01),
        torch.optim.Adam([{"params": others, "peak": ADAM_RATE}], lr=ADAM_RATE, betas=(0.9, 0.98)),
    ]


def update(model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer], share: float) -> None:
    """Clip, step at `share` of the full rates, and clear the gradients."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def train(out: Path, steps: int, batch: int) -> None:
    """Train and save the backbone."""
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("medium")
    tokenizer = build()
    model = new_model(tokenizer)
    optimizers, rng, generator = optimizers_of(model), random.Random(SEED), torch.Generator().manual_seed(SEED)
    texts = tokenize(tokenizer, steps * batch)
    blocks = Blocks(tokenizer)
    weights = torch.ones(len(tokenizer))
    weights[tokenizer.convert_tokens_to_ids(list(LETTERS))] = LETTER_WEIGHT
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(tokenizer)} tokens", flush=True)
    started, seen, window = time.perf_counter(), 0, list[float]()
    for step in range(steps):
        sample = texts[step * batch : (step + 1) * batch]
        foreign, total = step >= BLOCKS_FROM * steps, 0.0
        size = sum(len(text.completion) for text in sample)
        for chunk in chunks(sample, CHUNKS):
            rows = [blocks.row(t, rng, places=blocks.chosen(t.completion, rng) if foreign else set()) for t in chunk]
            loss = loss_of(model, collate(rows, blocks.pad), weights, generator) / size
            loss.backward()
            total += loss.item()
            seen += sum(len(row.ids) for row in rows)
        window.append(total)
        update(model, optimizers, schedule(step, steps))
        if (step + 1) % 50 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step + 1} loss {sum(window) / len(window):.4f} tokens {seen} {seconds:.0f}s", flush=True)
            window.clear()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"saved {out}: {seen} tokens in {time.perf_counter() - started:.0f}s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("src/tyler/assets/mini"), help="folder for the backbone")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=96, help="texts per step")
    asked = parser.parse_args()
    train(asked.out, asked.steps, asked.batch)


if __name__ == "__main__":
    main()
