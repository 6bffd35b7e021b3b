"""Centred latents: what is the same in every context learns apart from what is not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from interrupted import killed_after
from tyler.config.files import load_config
from tyler.config.loops import Stage1Config
from tyler.experiments.cells import Sources, Training
from tyler.model import Tyler
from tyler.modeling.synthesis import CentredHead, Head, mean_square
from tyler.training import stage1
from tyler.training.command import load_backbone
from tyler.training.stage1 import Stage1Trainer, centre, centring_examples, new_operators
from tyler.training.teacher_forcing import synthesize
from tyler.training.traces import load_traces

SHORT = ("stage1.latents=centred", "stage1.steps=3", "stage1.batch_size=4", "data.count=24", "data.held_out=[]")


def started(*overrides: str) -> tuple[Tyler, Stage1Config, list[Any]]:
    """New operators of `mini`, uncentred, with the settings and the traces of Stage 1."""
    config = load_config("mini", (*SHORT, *overrides))
    torch.manual_seed(3)
    backbone = load_backbone(config)
    return new_operators(config, backbone), config.stage1, load_traces(config, backbone)


def test_centred_latents_are_constants_and_a_projection_of_what_differs() -> None:
    head, hidden = Head(2, 3), torch.tensor([[[1.0, 5, 2], [0, 1, 1]], [[3.0, 5, 4], [2, 3, 5]]])
    made = CentredHead.start(head, hidden, scale=0.5)
    deviations = [[[-1, 0, -1], [-1, -1, -2]], [[1, 0, 1], [1, 1, 2]]]
    size = (sum(value**2 for call in deviations for slot in call for value in slot) / 12) ** 0.5
    for call, expected in zip(hidden, deviations, strict=True):
        told = made.latents.detach() + torch.tensor(expected) * 0.5 / size
        assert torch.allclose(made(call), told, atol=1e-6)
    assert torch.equal(made.queries, head.queries)


def test_they_start_at_the_scale_of_embeddings_around_the_mean_of_what_traces_give() -> None:
    model, config, traces = started()
    examples = centring_examples(traces, config)
    given: dict[str, list[Tensor]] = {"global": [], "state": [], "procedure": []}
    plain = model.synthesizer.mapping()
    with torch.no_grad():
        for example in examples:
            (blocks,) = synthesize(model.backbone, model.synthesizer.decoder, plain, [example])
            for insertion, block in zip(example.insertions, blocks, strict=True):
                head = plain[insertion.operator]
                assert isinstance(head, Head)
                given[insertion.operator].append(torch.linalg.solve(head.proj.weight, block.T).T)
    made = centre(model, examples)
    scale = float(mean_square(model.backbone.embedding).sqrt())
    for name, found in given.items():
        head, hidden = made.heads[name], torch.stack(found)
        assert isinstance(head, CentredHead)
        assert torch.allclose(head.centre, hidden.mean(dim=0), atol=1e-3)
        around = (head(hidden) - head.latents).detach()
        assert around.square().mean().sqrt() == pytest.approx(scale, rel=1e-3)
        assert around.mean(dim=0).abs().max() < 0.01 * scale


def test_constants_learn_at_a_rate_of_their_own_and_nothing_twice() -> None:
    model, config, traces = started("stage1.centring.learning_rate=0.2", "stage1.learning_rate=0.003")
    trainer = Stage1Trainer(centre(model, centring_examples(traces, config)), traces, config)
    (rest, rate), (constants, own_rate) = trainer.parameter_groups()
    assert (rate, own_rate) == (0.003, 0.2)
    assert len(constants) == 3 and not {id(one) for one in rest} & {id(one) for one in constants}
    assert {id(one) for one in [*rest, *constants]} == {id(one) for one in model.synthesizer.trainable()}


def test_a_killed_run_resumes_to_the_same_bits_and_its_model_loads_as_it_is(tmp_path: Path) -> None:
    config = load_config("mini", (*SHORT, "stage1.checkpoint_every=1"))
    whole = stage1.run(config, output=tmp_path / "whole")
    with killed_after(2):
        stage1.run(config, output=tmp_path / "cut")
    stage1.run(config, output=tmp_path / "cut", resume=True)
    resumed = Tyler.from_pretrained(str(tmp_path / "cut"))
    assert resumed.fingerprint() == whole.fingerprint() == Tyler.from_pretrained(str(tmp_path / "whole")).fingerprint()
    one, other = (model.solve("Find x when $5x - 28 = 47$.", max_new_tokens=8) for model in (whole, resumed))
    assert one.text == other.text and one.invocations == other.invocations
    assert all(torch.equal(*blocks) for blocks in zip(one.latents, other.latents, strict=True))
    whole.save_pretrained(tmp_path / "half", half=True)
    head, halved = whole.heads["state"], Tyler.from_pretrained(tmp_path / "half").heads["state"]
    assert isinstance(head, CentredHead) and isinstance(halved, CentredHead)
    assert torch.equal(halved.centre, head.centre.half().float())


def test_traces_that_hardly_insert_an_operator_are_refused_with_the_way_out() -> None:
    model, config, traces = started()
    few = centring_examples(traces, config)[:1]
    with pytest.raises(
        ValueError, match=r"two different insertions of every operator, and 1 training traces have [01] of '"
    ):
        centre(model, few)


def test_what_cannot_be_centred_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="shard_layers needs latents=computed or constant"):
        Stage1Config(latents="centred", shard_layers=True)
    config = load_config("mini", SHORT)
    with pytest.raises(ValueError, match="start from new operators; leave start out"):
        stage1.run(config, output=tmp_path / "run", start="mini-tyler")


def test_a_setting_that_nothing_else_reads_does_not_rename_other_trainings() -> None:
    plain, centred = Training("stage1"), Training("stage1", ("stage1.latents=centred",))
    sources = Sources({})
    told = plain.identity("mini", 42, sources)["stages"][0]["stage1"]
    assert "centring" not in told and told["latents"] == "computed"
    assert "centring" in centred.identity("mini", 42, sources)["stages"][0]["stage1"]


def test_the_seed_decides_which_traces_are_read() -> None:
    _, config, traces = started("stage1.centring.num_traces=5")
    one, other = centring_examples(traces, config), centring_examples(traces, config)
    assert one == other and len(one) == 5
    state = random.getstate()
    assert centring_examples(traces, config.model_copy(update={"seed": 1})) != one
    assert random.getstate() == state
