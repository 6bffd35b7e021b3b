"""Pretrain `mini`, the embedded backbone, on the generated corpus of `tyler.tasks.mini` and save it in HF format.

    OMP_NUM_THREADS=2 python scripts/pretrain_mini.py --out src/tyler/assets/mini

The defaults are the recipe of the shipped weights. A killed run resumes with the same command, to the same weights.
Products run at `medium` precision for speed, so two machines agree in what is learned but not bit by bit.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
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
        starts, opened = [0], False
        for i, token in enumerate(completion[:-1]):
            opens = token in self.dollars or token == self.fence
            after_blank = i > 0 and completion[i - 1] == self.paragraph
            if i > 0 and (after_blank or (opens and not opened) or (completion[i - 1], token) in self.keys):
                starts.append(i)
            opened ^= opens
        return starts

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
        positions = self.boundaries(completion)
        kind = rng.random()
        if kind < 0.3:
            return set()
        if kind < 0.5:
            return {0}
        if kind < 0.85:
            return set(rng.sample(positions, rng.randint(1, min(len(positions), 5)))) | (
                {0} if rng.random() < 0.6 else set()
            )
        return set(positions)

    def row(self, text: Text, rng: random.Random, *, positions: set[int]) -> Row:
        """The training sequence of a text with blocks before the given positions of its completion."""
        row = Row()
        for token in text.prompt:
            row.visible(token, IGNORED)
        for i, token in enumerate(text.completion):
            if i in positions:
                self.block(row, text, i, rng)
            row.visible(token, token)
        return row


def tokenize(tokenizer: PreTrainedTokenizerFast, seed: int, count: int, start: float) -> list[Text]:
    """The corpus as token ids, in the order of its curriculum."""
    examples = list(corpus(seed, count, start=start))
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


def new_model(tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> Qwen3ForCausalLM:
    """A Qwen3 decoder with 1/sqrt(fan_in) weights and tied embeddings."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=args.width,
        intermediate_size=args.ffn,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
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


def schedule(step: int, steps: int, decay: float) -> float:
    """Warm up over 40 steps, stay, and fall linearly to 2% over the last `decay` of the steps."""
    return min(1.0, (step + 1) / 40, 0.02 + 0.98 * (steps - step) / (decay * steps))


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write beside the place first, then move file by file, so that no half-written file is ever read."""
    staging = out.with_name(out.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(staging.iterdir()):
        os.replace(file, out / file.name)
    staging.rmdir()


def chunks(texts: list[Text], count: int) -> list[list[Text]]:
    """One step's texts, split by length into `count` chunks: little padding, yet every step sees a fair sample."""
    ordered = sorted(texts, key=lambda text: len(text.prompt) + len(text.completion))
    size = -(-len(ordered) // count)
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def optimizers_of(model: Qwen3ForCausalLM, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, Adam for the embeddings and norms; each group remembers its full rate as `peak`."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon([{"params": matrices, "peak": args.muon_lr}], lr=args.muon_lr, weight_decay=0.01),
        torch.optim.Adam([{"params": others, "peak": args.adam_lr}], lr=args.adam_lr, betas=(0.9, 0.98)),
    ]


def update(model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer], share: float) -> None:
    """Clip, step at `share` of the full rates, and clear the gradients."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = share * group["peak"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@dataclass
class Progress:
    """Everything a run needs to go on: weights, optimizers, generators, and how far it has come."""

    model: Qwen3ForCausalLM
    optimizers: list[torch.optim.Optimizer]
    rng: random.Random
    generator: torch.Generator
    step: int = 0
    seen: int = 0
    seconds: float = 0.0

    def save(self, path: Path, args: argparse.Namespace) -> None:
        """Write beside the file, then move over it."""
        partial = path.with_suffix(".partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "arguments": settings(args),
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": self.rng.getstate(),
            "generator": self.generator.get_state(),
            "counts": (self.step, self.seen, self.seconds),
        }
        torch.save(state, partial)
        os.replace(partial, path)

    def load(self, path: Path, args: argparse.Namespace) -> None:
        """Continue from a file of `save` written under the same arguments."""
        state = torch.load(path, weights_only=True)
        if state["arguments"] != settings(args):
            raise SystemExit(
                f"{path} belongs to a run with {state['arguments']}, not {settings(args)}; delete it first"
            )
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        version, words, gauss = state["rng"]
        self.rng.setstate((version, tuple(words), gauss))
        self.generator.set_state(state["generator"])
        self.step, self.seen, self.seconds = state["counts"]


def settings(args: argparse.Namespace) -> dict[str, str]:
    """The arguments that decide the weights, as text."""
    return {name: str(value) for name, value in vars(args).items() if name not in ("out", "save_seconds")}


def gradients(
    progress: Progress, sample: list[Text], blocks: Blocks, weights: Tensor, args: argparse.Namespace
) -> float:
    """Accumulate one step's gradients, chunk by chunk; returns the loss per completion token."""
    foreign, total = progress.step >= args.blocks_from * args.steps, 0.0
    size = sum(len(text.completion) for text in sample)
    rng = progress.rng
    for chunk in chunks(sample, args.chunks):
        rows = [blocks.row(t, rng, positions=blocks.chosen(t.completion, rng) if foreign else set()) for t in chunk]
        loss = loss_of(progress.model, collate(rows, blocks.pad), weights, progress.generator) / size
        loss.backward()
        total += loss.item()
        progress.seen += sum(len(row.ids) for row in rows)
    return total


def train(args: argparse.Namespace) -> None:
    """Train, or go on where a killed run of the same arguments stopped, and save the backbone at the end."""
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("medium")
    tokenizer = build()
    model = (
        Qwen3ForCausalLM.from_pretrained(args.start, dtype=torch.float32) if args.start else new_model(tokenizer, args)
    )
    generator = torch.Generator().manual_seed(args.seed)
    progress = Progress(model, optimizers_of(model, args), random.Random(args.seed), generator)
    resume = args.out.with_name(args.out.name + ".resume.pt")
    if resume.exists():
        progress.load(resume, args)
    texts = tokenize(tokenizer, args.seed, args.steps * args.batch, args.curriculum_from)
    blocks = Blocks(tokenizer)
    weights = torch.ones(len(tokenizer))
    weights[tokenizer.convert_tokens_to_ids(list(LETTERS))] = args.letter_weight
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters, {len(tokenizer)} tokens, from step {progress.step}", flush=True)
    started = saved = time.perf_counter() - progress.seconds
    window: list[float] = []
    while progress.step < args.steps:
        sample = texts[progress.step * args.batch : (progress.step + 1) * args.batch]
        window.append(gradients(progress, sample, blocks, weights, args))
        update(model, progress.optimizers, schedule(progress.step, args.steps, args.decay))
        progress.step += 1
        progress.seconds = time.perf_counter() - started
        if progress.step % 50 == 0:
            mean, rate = sum(window) / len(window), progress.seen / progress.seconds
            print(
                f"step {progress.step} loss {mean:.4f} tokens {progress.seen} {rate:.0f}/s {progress.seconds:.0f}s",
                flush=True,
            )
            window = []
        if time.perf_counter() - saved > args.save_seconds:
            progress.save(resume, args)
            saved = time.perf_counter()
    save(model, tokenizer, args.out)
    resume.unlink(missing_ok=True)
    print(f"saved {args.out}: {progress.seen} tokens in {progress.seconds:.0f}s", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("src/tyler/assets/mini"), help="folder for the backbone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=96, help="texts per step")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--ffn", type=int, default=448)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--chunks", type=int, default=4, help="chunks of like length a step is split into")
    parser.add_argument("--decay", type=float, default=0.45, help="share of the steps over which the rates fall")
    parser.add_argument("--letter-weight", type=float, default=2.0, help="loss weight of the letters of options")
    parser.add_argument("--start", type=Path, default=None, help="go on from the weights in this folder")
    parser.add_argument("--curriculum-from", type=float, default=0.0, help="where in the curriculum to begin, 0..1")
    parser.add_argument(
        "--blocks-from", type=float, default=0.62, help="share of the steps before foreign blocks appear"
    )
    parser.add_argument("--save-seconds", type=float, default=150.0, help="seconds between saves of the state")
    return parser.parse_args()


if __name__ == "__main__":
    train(arguments())
