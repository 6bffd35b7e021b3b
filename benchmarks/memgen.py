"""MemGen on our engine, beside an implementation that encodes everything again at every block, as the release does.

    OMP_NUM_THREADS=2 python benchmarks/memgen.py [--config NAME] [--json out.json]

Both get the same random model (or the backbone of a config with a random weaver), greedy decoding and the same places
for the blocks, and must give the same tokens. Places: "early" is what the released rule does in running text, the
first delimiters; "spread" is a trigger that says yes five times over the whole answer. Rounds are interleaved, so that
a machine whose speed drifts slows both; the ratio is taken within rounds. Positions are those that go through a model,
padding included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, DynamicCache, Qwen3Config, Qwen3ForCausalLM

from tyler.backbone import Backbone
from tyler.config import load_config
from tyler.operators import Operator
from tyler.reasoners.memgen import MemGen
from tyler.reasoners.memgen.routing import AtDelimiters, DelimiterSchedule
from tyler.reasoners.memgen.weaver import INFERENCE, PROMPT
from tyler.request import Request
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
    """One line of the table."""

    name: str
    prompts: list[list[int]]
    places: list[tuple[int, ...]]
    new_tokens: int
    ours: list[Measurement] = field(default_factory=list)
    theirs: list[Measurement] = field(default_factory=list)


def random_model(layers: int, dim: int) -> MemGen:
    """A random Qwen3 of the given size with mini's tokenizer; nothing is downloaded."""
    config = Qwen3Config(
        vocab_size=8192,
        hidden_size=dim,
        num_hidden_layers=layers,
        num_attention_heads=dim // 64,
        num_key_value_heads=max(1, dim // 128),
        head_dim=64,
        intermediate_size=3 * dim,
        max_position_embeddings=8192,
        eos_token_id=None,
    )
    tokenizer = AutoTokenizer.from_pretrained(str(Path(__file__).parent.parent / "src" / "tyler" / "assets" / "mini"))
    tokenizer.eos_token = None
    model = Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa")
    return MemGen.start(Backbone("random", model, tokenizer), prompt=Prompt(""))


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


def count_positions(reader: object, fed: dict[str, int], name: str) -> None:
    inputs = reader.inputs  # type: ignore[attr-defined]

    def counted(rows: range, positions: Tensor) -> Tensor:
        fed[name] += positions.numel()
        return inputs(rows, positions)

    reader.inputs = counted  # type: ignore[attr-defined]


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


def reference_point(model: MemGen) -> dict[str, dict[str, int]]:
    """Positions through the models at the point where the release was measured; plain decoding needs 79."""
    draw = random.Random(0)
    vocab = min(model.backbone.vocab_size, len(model.backbone.tokenizer))
    point = Setting("reference", [[draw.randrange(vocab) for _ in range(20)]], [REFERENCE_POINT], 60)
    ours, theirs = on_the_engine(model, point), encoding_again(model, point)
    assert ours.tokens == theirs.tokens, "both decode the same tokens"
    found = {
        name: {"policy": one.policy_positions, "weaver": one.weaver_positions}
        for name, one in (("engine", ours), ("encoding again", theirs))
    }
    assert found["encoding again"] == {"policy": 401, "weaver": 347}, found
    return {**found, "plain": {"policy": 79, "weaver": 0}}


def summary(one: Setting) -> dict[str, object]:
    ratios = [theirs.seconds / ours.seconds for ours, theirs in zip(one.ours, one.theirs, strict=True)]
    return {
        "setting": one.name,
        "engine_seconds": [measured.seconds for measured in one.ours],
        "encoding_again_seconds": [measured.seconds for measured in one.theirs],
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "engine_positions": {"policy": one.ours[0].policy_positions, "weaver": one.ours[0].weaver_positions},
        "encoding_again_positions": {
            "policy": one.theirs[0].policy_positions,
            "weaver": one.theirs[0].weaver_positions,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="take the backbone of this config; by default a random one")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt-length", type=int, default=100)
    parser.add_argument("--new-tokens", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch.manual_seed(0)
    model = configured_model(arguments.config) if arguments.config else random_model(arguments.layers, arguments.dim)
    point = reference_point(model)
    settings = [
        setting(name, model, batch, arguments.prompt_length, arguments.new_tokens, spread=name == "spread")
        for batch in arguments.batches
        for name in ("early", "spread")
    ]
    for _ in range(arguments.rounds):
        for one in settings:
            one.ours.append(on_the_engine(model, one))
            one.theirs.append(encoding_again(model, one))
            assert one.ours[-1].tokens == one.theirs[-1].tokens, f"{one.name}: both decode the same tokens"
    summaries = [summary(one) for one in settings]
    threads = torch.get_num_threads()
    print(f"{arguments.new_tokens} new tokens, {INSERTIONS} blocks after the prompt's, {threads} threads")
    print(f"{'places':18} {'engine s':>9} {'again s':>9} {'ratio':>6} {'min':>6} {'max':>6} {'positions':>14}")
    for one, found in zip(settings, summaries, strict=True):
        ours, theirs = one.ours[0], one.theirs[0]
        total = [part.policy_positions + part.weaver_positions for part in (ours, theirs)]
        print(
            f"{one.name:18} {statistics.median(m.seconds for m in one.ours):>9.2f} "
            f"{statistics.median(m.seconds for m in one.theirs):>9.2f} {found['ratio']:>6.2f} "
            f"{found['ratio_min']:>6.2f} {found['ratio_max']:>6.2f} {total[0]:>6} {total[1]:>7}"
        )
    print(f"at 20 + 60 tokens, positions: {json.dumps(point)}")
    if arguments.json:
        content = {"arguments": vars(arguments) | {"json": str(arguments.json)}, "threads": threads}
        arguments.json.write_text(json.dumps({**content, "reference_point": point, "settings": summaries}, indent=2))


if __name__ == "__main__":
    main()
