"""MemGen on our engine, beside an implementation that encodes everything again at every block, as the release does.

    OMP_NUM_THREADS=2 python benchmarks/memgen.py [--config NAME] [--quick] [--json out.json]

Both get the same random model (or the backbone of a config with a random weaver), greedy decoding and the same places
for the blocks, and must give the same tokens. Places: "early" is what the released rule does in running text, the
first delimiters; "spread" is a trigger that says yes five times over the whole answer. Positions are those that go
through a model, padding included.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from harness import Contest, Figure, Report, Work, compete, options, read
from models import sized
from tyler.config.files import load_config
from tyler.engine.native.attention import PackedAttention
from tyler.engine.native.reader import Reader
from tyler.engine.request import Request
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.reasoners.memgen import MemGen
from tyler.reasoners.memgen.routing import AtDelimiters, DelimiterSchedule
from tyler.reasoners.memgen.weaver import INFERENCE, PROMPT
from tyler.tasks.prompts import Prompt

INSERTIONS = 5
REFERENCE_POINT = (5, 9, 12, 15, 18)
"""Places for a 20-token prompt and 60 new tokens at which the release was measured: 401 + 347 positions."""


@dataclass(frozen=True)
class Planned(AtDelimiters):
    """Blocks at given numbers of visible tokens, whatever the text."""

    places: tuple[int, ...] = ()

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> DelimiterSchedule:
        return PlannedSchedule(self, random)


class PlannedSchedule(DelimiterSchedule):
    def look(self, at_delimiter: bool) -> None:
        assert isinstance(self.router, Planned)
        super().look(self._position in self.router.places)


@dataclass
class Measurement:
    seconds: float
    tokens: list[list[int]]
    policy_positions: int
    weaver_positions: int


@dataclass
class Setting:
    """Prompts, and where their blocks go."""

    name: str
    prompts: list[list[int]]
    places: list[tuple[int, ...]]
    new_tokens: int


def random_model(layers: int, dim: int) -> MemGen:
    """A random Qwen3 of the given size."""
    return MemGen.start(sized(layers, dim, max_positions=8192), prompt=Prompt(""))


def configured_model(name: str) -> MemGen:
    """The backbone of a config, which never ends an answer here, with a random weaver."""
    settings = load_config(name).backbone
    backbone = Backbone.load(settings.id, revision=settings.revision, dtype=settings.dtype)
    backbone.tokenizer.eos_token = None
    if backbone.model.generation_config is not None:
        backbone.model.generation_config.eos_token_id = None
    return MemGen.start(backbone, prompt=Prompt(""))


def on_the_engine(model: MemGen, setting: Setting) -> Measurement:
    engine = model.engine(slots=len(setting.prompts))
    fed = {"policy": 0, "weaver": 0}
    for name, reader in (("policy", engine.policy_reader), ("weaver", engine.synthesis_reader)):
        count_positions(reader, fed, name)
    requests = [
        Request(prompt, Planned(len(places), places=places), max_new_tokens=setting.new_tokens)
        for prompt, places in zip(setting.prompts, setting.places, strict=True)
    ]
    started = time.perf_counter()
    answers = engine.run(requests)
    seconds = time.perf_counter() - started
    tokens = [[a for a, is_op in zip(one.actions, one.is_operator, strict=True) if not is_op] for one in answers]
    for one, places in zip(answers, setting.places, strict=True):
        assert [call.position for call in one.invocations] == [0, *places]
    return Measurement(seconds, tokens, fed["policy"], fed["weaver"])


def count_positions(reader: Reader, fed: dict[str, int], name: str) -> None:
    fused = reader.fused

    def counted(x: Tensor, packed: PackedAttention) -> Tensor:
        fed[name] += len(x)
        return fused(x, packed)

    reader.fused = counted  # type: ignore[assignment]


@torch.no_grad()
def encoding_again(model: MemGen, setting: Setting) -> Measurement:
    """The released behaviour: one left-padded batch; a block in any row drops the cache, and all rows are read again.

    Kinder than the release in two things: logits are computed at the last position only, and the weaver's LoRA is
    folded. The text is decoded as a whole at every step, as there.
    """
    backbone, weaver, decoder = model.backbone, model.weaver, model.weaver.decoder()
    batch, width = len(setting.prompts), max(len(prompt) for prompt in setting.prompts)
    embeds = torch.zeros(batch, width, backbone.dim, dtype=backbone.dtype, device=backbone.device)
    mask = torch.zeros(batch, width, dtype=torch.long, device=backbone.device)
    for row, prompt in enumerate(setting.prompts):
        embeds[row, width - len(prompt) :] = backbone.embed(torch.tensor(prompt, device=backbone.device))
        mask[row, width - len(prompt) :] = 1
    tokens: list[list[int]] = [[] for _ in setting.prompts]
    policy_positions = weaver_positions = 0
    cache = None
    started = time.perf_counter()
    for step in range(setting.new_tokens):
        for prompt, visible in zip(setting.prompts, tokens, strict=True):
            backbone.tokenizer.decode([*prompt, *visible])
        due = [row for row in range(batch) if step == 0 or step in setting.places[row]]
        if due:
            head = weaver.mapping()[PROMPT if step == 0 else INFERENCE]
            queries = head.queries.to(embeds.dtype).expand(len(due), -1, -1)
            together = torch.cat([weaver.map_inputs(embeds[due]), queries], dim=1)
            seen = nn_pad(mask[due], right=head.num_latents, value=1)
            hidden = decoder(
                inputs_embeds=together, attention_mask=seen, position_ids=positions(seen), use_cache=False
            ).last_hidden_state
            weaver_positions += together.shape[0] * together.shape[1]
            longer = torch.zeros(batch, embeds.shape[1] + head.num_latents, backbone.dim).to(embeds)
            longer[:, head.num_latents :] = embeds
            mask = nn_pad(mask, left=head.num_latents, value=0)
            longer[due] = torch.cat([embeds[due], head(hidden[:, -head.num_latents :])], dim=1)
            mask[due] = seen
            embeds, cache = longer, None
        new = embeds if cache is None else embeds[:, -1:]
        cache = cache if cache is not None else DynamicCache(config=backbone.model.config)
        out = backbone.model(
            inputs_embeds=new,
            attention_mask=mask,
            position_ids=positions(mask)[:, -new.shape[1] :],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        policy_positions += new.shape[0] * new.shape[1]
        chosen = out.logits[:, -1].argmax(dim=-1)
        for row, token in enumerate(chosen.tolist()):
            tokens[row].append(token)
        embeds = torch.cat([embeds, backbone.embed(chosen)[:, None]], dim=1)
        mask = nn_pad(mask, right=1, value=1)
    return Measurement(time.perf_counter() - started, tokens, policy_positions, weaver_positions)


def nn_pad(mask: Tensor, left: int = 0, right: int = 0, value: int = 0) -> Tensor:
    return torch.nn.functional.pad(mask, (left, right), value=value)


def positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


def setting(name: str, model: MemGen, batch: int, prompt_length: int, new_tokens: int, spread: bool) -> Setting:
    """Prompts of random tokens, and five places a row: spread over the answer, or 10 to 20 tokens apart."""
    draw = random.Random(f"{name} {batch}")
    vocab = min(model.backbone.vocab_size, len(model.backbone.tokenizer))
    prompts = [[draw.randrange(vocab) for _ in range(prompt_length + draw.randrange(-8, 9))] for _ in range(batch)]
    part = new_tokens // INSERTIONS
    places = []
    for _ in range(batch):
        steps = [draw.randint(10, 20) for _ in range(INSERTIONS)]
        early = [sum(steps[: count + 1]) for count in range(INSERTIONS)]
        spread_out = [part * count + draw.randrange(part // 2, part - 1) for count in range(INSERTIONS)]
        places.append(tuple(spread_out if spread else early))
    return Setting(f"{name}, batch {batch}", prompts, places, new_tokens)


WAYS: dict[str, Callable[[MemGen, Setting], Measurement]] = {
    "engine": on_the_engine,
    "encoding again": encoding_again,
}


def reference_point(model: MemGen) -> list[Figure]:
    """Positions through the models at the point where the release was measured; plain decoding needs 79."""
    draw = random.Random(0)
    vocab = min(model.backbone.vocab_size, len(model.backbone.tokenizer))
    point = Setting("reference point", [[draw.randrange(vocab) for _ in range(20)]], [REFERENCE_POINT], 60)
    again = encoding_again(model, point)
    assert (again.policy_positions, again.weaver_positions) == (401, 347), again
    return positions_of(model, point)


def positions_of(model: MemGen, one: Setting) -> list[Figure]:
    """What goes through reasoner and weaver; both ways must decode the same tokens."""
    found = {name: way(model, one) for name, way in WAYS.items()}
    tokens = [measured.tokens for measured in found.values()]
    assert tokens[0] == tokens[1], f"{one.name}: both decode the same tokens"
    return [
        Figure(one.name, f"{name}, {part}", count, "positions")
        for name, measured in found.items()
        for part, count in (("reasoner", measured.policy_positions), ("weaver", measured.weaver_positions))
    ]


def contest(model: MemGen, one: Setting) -> Contest:
    def work(way: Callable[[MemGen, Setting], Measurement]) -> Work:
        return lambda: way(model, one).seconds

    amount = len(one.prompts) * one.new_tokens
    return Contest(one.name, {name: work(way) for name, way in WAYS.items()}, amount, "tokens")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--config", help="take the backbone of this config; by default a random one")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt-length", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=600)
    arguments = read(parser)
    new_tokens = arguments.new_tokens // 4 if arguments.quick else arguments.new_tokens
    if new_tokens <= 20 * INSERTIONS:
        parser.error(f"{new_tokens} new tokens do not hold {INSERTIONS} blocks up to 20 tokens apart; give more")
    report = Report("memgen", arguments)
    model = configured_model(arguments.config) if arguments.config else random_model(arguments.layers, arguments.dim)
    settings = [
        setting(name, model, batch, arguments.prompt_length, new_tokens, spread=name == "spread")
        for batch in arguments.batches
        for name in ("early", "spread")
    ]
    report.add(reference_point(model))
    for one in settings:
        report.add(positions_of(model, one))
    report.add(compete([contest(model, one) for one in settings], arguments.rounds, warmups=0))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
