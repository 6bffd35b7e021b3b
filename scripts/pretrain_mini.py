"""Pretrain `mini`, the embedded backbone, on the generated corpus of `tyler.tasks.mini` and save it in HF format.

    OMP_NUM_THREADS=2 python scripts/pretrain_mini.py --out src/tyler/assets/mini

Constants and defaults are the recipe of the shipped weights. Products run at `medium` precision for speed, so two
machines agree in what is learned but not bit by bit. The same command resumes after a kill.
"""

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro
import yaml
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from tyler.modeling.random_init import read_tokenizer
from tyler.runs.atomic_files import atomic_write
from tyler.runs.checkpoints import checkpoint_step, reading
from tyler.runs.progress import bar
from tyler.runs.run import CONFIG, Run
from tyler.tasks.mini.families import LETTERS, STYLES
from tyler.tasks.mini.world import corpus

MINI, RUN = Path("src/tyler/assets/mini"), Path("runs/pretrain-mini")
ASSETS = Path(__file__).parents[1] / MINI
"""The tokenizer is the shipped one: a change of the world never moves the ids of shipped weights."""
CUES = ("careful", "wrong", "plain", "numbered", "brief", "reversed")
"""One word per style, in the order of `STYLES`; blocks of embeddings use them to name a style."""
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


class Position(NamedTuple):
    """One position of a training sequence: its label, and the tokens whose embeddings it mixes, with their weights.

    A block's position is foreign: it has noise of its own, and no label.
    """

    label: int
    mixed: tuple[int, ...]
    weights: tuple[float, ...]
    noise: float = 0.0
    foreign: bool = False


def mixture(tokens: tuple[int, ...], scale: float = 1.0) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """MIXED tokens and their weights, of which as many count as there are."""
    count = len(tokens)
    weights = [scale / math.sqrt(count) if index < count else 0.0 for index in range(MIXED)]
    return (*tokens, *(0,) * MIXED)[:MIXED], tuple(weights)


class Blocks:
    """Foreign embeddings in the middle of a text: previews of what comes, and junk."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.vocab_size = len(tokenizer)
        self.first = 4  # after the special tokens
        ids = tokenizer.get_vocab()
        self.paragraph, self.fence = ids["ĊĊ"], ids["```"]
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
            vectors: list[tuple[int, ...]] = [(token,) for token in window[skip : skip + length]]
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

    def block(self, text: Text, start: int, rng: random.Random) -> list[Position]:
        """What stands before position `start` of a completion."""
        length = rng.randint(2, 8)
        preview = rng.random() < 0.6
        vectors = self.preview(text, start, length, rng) if preview else self.junk(length, rng)
        scale, noise = rng.uniform(0.6, 1.4), rng.uniform(0.0, 0.4)
        return [Position(IGNORED, *mixture(tokens, scale), noise if tokens else scale, True) for tokens in vectors]

    def chosen(self, completion: list[int], rng: random.Random) -> set[int]:
        """Where this text gets blocks: nowhere, at the start only, at some boundaries, or at all of them."""
        positions = self.boundaries(completion)
        kind = rng.random()
        if kind < 0.5:
            return set() if kind < 0.3 else {0}
        if kind >= 0.85:
            return set(positions)
        some = set(rng.sample(positions, rng.randint(1, min(len(positions), 5))))
        return some | {0} if rng.random() < 0.6 else some

    def row(self, text: Text, rng: random.Random, *, with_blocks: bool) -> list[Position]:
        """The training sequence of a text, with blocks where it gets some."""
        before = self.chosen(text.completion, rng) if with_blocks else set()
        row = [Position(IGNORED, *mixture((token,))) for token in text.prompt]
        for i, token in enumerate(text.completion):
            row += self.block(text, i, rng) if i in before else []
            row.append(Position(token, *mixture((token,))))
        return row


def tokenize(tokenizer: PreTrainedTokenizerBase, count: int) -> list[Text]:
    """The corpus as token ids, in the order of its curriculum."""
    examples = list(corpus(SEED, count))
    turns = [[{"role": "user", "content": e.prompt}] for e in examples]
    chats = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    prompts = tokenizer(chats)["input_ids"]
    completions = tokenizer([e.completion for e in examples])["input_ids"]
    vocab = tokenizer.get_vocab()
    cues = {style: vocab[f"Ġ{cue}"] for style, cue in zip(STYLES, CUES, strict=True)}
    return [
        Text(p, [*c, tokenizer.eos_token_id], cues[e.style])
        for p, c, e in zip(prompts, completions, examples, strict=True)
    ]


def new_model(tokenizer: PreTrainedTokenizerBase) -> Qwen3ForCausalLM:
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


def collate(rows: list[list[Position]]) -> list[Tensor]:
    """Right-padded: labels, mixed token ids, their weights, noise [batch seq ...], and where block vectors are."""
    length = -(-max(map(len, rows)) // 8) * 8
    padded = [[*row, *[Position(IGNORED, *mixture(()))] * (length - len(row))] for row in rows]
    columns = zip(*(zip(*row, strict=True) for row in padded), strict=True)
    return [torch.tensor(column) for column in columns]


def loss_of(model: Qwen3ForCausalLM, batch: list[Tensor], weights: Tensor) -> Tensor:
    """Cross-entropy of the completions' visible tokens, summed with a weight [vocab] per token."""
    labels, mixed, weight, noise, foreign = batch
    table: Any = model.get_input_embeddings()
    embeddings = table(mixed[..., 0])
    if foreign.any():
        vectors = (table.weight.detach()[mixed] * weight[..., None]).sum(2)
        spread = table.weight.detach().std()
        vectors += noise[..., None] * spread * torch.randn(vectors.shape)
        embeddings = torch.where(foreign[..., None], vectors, embeddings)
    hidden = model.base_model(inputs_embeds=embeddings, use_cache=False).last_hidden_state[:, :-1]
    wanted = labels[:, 1:]
    known = wanted != IGNORED
    return cross_entropy(model.get_output_embeddings()(hidden[known]), wanted[known], weights, reduction="sum")


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


class Pretraining:
    """The model, its optimizers and its random streams: all that a step changes."""

    def __init__(self, steps: int, batch: int) -> None:
        torch.manual_seed(SEED)
        self.steps, self.batch, self.tokenizer = steps, batch, read_tokenizer(ASSETS)
        self.model, self.blocks = new_model(self.tokenizer), Blocks(self.tokenizer)
        self.optimizers, self.rng = optimizers_of(self.model), random.Random(SEED)
        torch.manual_seed(SEED)
        self.texts = tokenize(self.tokenizer, steps * batch)
        self.weights = torch.ones(len(self.tokenizer))
        self.weights[self.tokenizer.convert_tokens_to_ids(list(LETTERS))] = LETTER_WEIGHT

    def step(self, step: int) -> float:
        """One update, on the texts that are its own; returns its loss a token."""
        sample, total = self.texts[step * self.batch : (step + 1) * self.batch], 0.0
        size, foreign = sum(len(text.completion) for text in sample), step >= BLOCKS_FROM * self.steps
        for chunk in chunks(sample, CHUNKS):
            rows = [self.blocks.row(text, self.rng, with_blocks=foreign) for text in chunk]
            loss = loss_of(self.model, collate(rows), self.weights) / size
            loss.backward()
            total += loss.item()
        update(self.model, self.optimizers, schedule(step, self.steps))
        return total

    def save(self, folder: Path) -> None:
        """Write the model, and beside it what the next step depends on."""
        self.model.save_pretrained(folder / "model")
        self.tokenizer.save_pretrained(folder / "model")
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save([optimizers, torch.get_rng_state(), self.rng.getstate()], folder / "state.pt")

    def load(self, checkpoint: Path) -> int:
        """Put back what `save` wrote; returns the number of steps done."""
        with reading(checkpoint):
            optimizers, generator, rng = torch.load(checkpoint / "state.pt")
            self.model.load_state_dict(load_file(checkpoint / "model" / "model.safetensors"), strict=False)
        for optimizer, state in zip(self.optimizers, optimizers, strict=True):
            optimizer.load_state_dict(state)
        torch.set_rng_state(generator)
        self.rng.setstate(rng)
        return checkpoint_step(checkpoint)


def main(out: Path = MINI, run: Path = RUN, steps: int = 3000, batch: int = 96, save_every: int = 250) -> None:
    """Pretrain the backbone into `out`, with `batch` texts a step; its checkpoints and losses are in `run`."""
    begin = Run.resume if (run / CONFIG).exists() else Run.create
    with begin(run, yaml.safe_dump({"steps": steps, "batch": batch})) as kept:
        work, start = Pretraining(steps, batch), kept.latest_checkpoint()
        done = 0 if start is None else work.load(start)
        with bar("pretraining", steps, done, where=run) as progress:
            for step in range(done, steps):
                loss = work.step(step)
                kept.log(step + 1, {"loss": loss})
                progress.advance(note=f"loss {loss:.4f}")
                if (step + 1) % save_every == 0 or step + 1 == steps:
                    kept.save_checkpoint(step + 1, work.save)
        newest = kept.latest_checkpoint()
    out.mkdir(parents=True, exist_ok=True)
    for file in (newest / "model").iterdir() if newest else ():
        atomic_write(out / file.name, file.read_bytes())
    print(f"saved {out}")


if __name__ == "__main__":
    torch.set_float32_matmul_precision("medium")  # of the whole process
    tyro.cli(main)
