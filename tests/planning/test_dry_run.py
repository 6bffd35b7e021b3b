"""The dry run on a tiny shape: every training takes a step, and the tables say what it took."""

import json
import math
import time
from pathlib import Path

import psutil
import pytest
import torch

import tiny
from tyler.config.files import load_config
from tyler.config.schema import Config
from tyler.modeling.architectures import PUBLISHED, biased_maps
from tyler.modeling.random_init import architecture, random_backbone, read_tokenizer
from tyler.planning import dry_run
from tyler.planning.dry_run import Meter, rehearse
from tyler.reasoners.table import TRAININGS
from tyler.training.planned import Shape

FROM_TRACES = ("stage1", "sft", "softcot", "memgen")
PHASES = ["build", "stage1 step", "calibration", "rollout", "stage2 step"]


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    """A folder with an architecture and a tokenizer, and no weights."""
    return without_weights("qwen3", tmp_path)


def without_weights(family: str, folder: Path) -> Path:
    settings = tiny.config(family).to_dict() | {"max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(settings))
    tiny.tokenizer().save_pretrained(folder)
    return folder


def config_for(shape: Path, *overrides: str) -> Config:
    return load_config("qwen2.5-1.5b", [f"backbone.id={shape}", "stage1.batch_size=4", "grpo.group_size=2", *overrides])


@pytest.mark.parametrize("family, dtype", [("llama", "float32"), ("qwen3", "float32"), ("qwen3", "bfloat16")])
def test_both_stages_take_a_step(family: str, dtype: str, tmp_path: Path) -> None:
    shape = without_weights(family, tmp_path)
    report = rehearse(config_for(shape, f"backbone.dtype={dtype}"), shape, length=200, device="cpu")
    assert report.backbone.dtype == getattr(torch, dtype)
    assert [phase.name for phase in report.phases] == PHASES
    assert all(phase.seconds > 0 for phase in report.phases)
    assert report.loss == pytest.approx(math.log(report.backbone.vocab_size), rel=0.1), "random weights guess"
    predicted = {phase.name: phase.predicted for phase in report.phases if phase.predicted}
    assert list(predicted) == PHASES
    assert all(size > 0 for parts in predicted.values() for size in parts.values())
    assert sum(one.numel() for one in report.backbone.model.parameters()) == report.counts.backbone


@pytest.mark.parametrize("method", [one for one in TRAININGS if one not in ("stage1", "stage2")])
def test_every_other_training_takes_a_step_that_is_measured_and_predicted(method: str, shape: Path) -> None:
    report = rehearse(config_for(shape, "backbone.dtype=float32"), shape, method, length=200, device="cpu")
    rollout = [] if method in FROM_TRACES else [f"{method} rollout"]
    assert [phase.name for phase in report.phases] == ["build", *rollout, f"{method} step"]
    assert report.phases[-1].seconds > 0 and report.phases[-1].expected > 0
    if method in FROM_TRACES:
        assert report.loss == pytest.approx(math.log(report.backbone.vocab_size), rel=0.1), "random weights guess"


def test_longer_traces_are_predicted_to_take_more(shape: Path) -> None:
    short, long = (
        {phase.name: phase.expected for phase in rehearse(config_for(shape), shape, length=length, device="cpu").phases}
        for length in (200, 400)
    )
    assert long["stage1 step"] > 1.5 * short["stage1 step"]
    assert long["build"] == short["build"]


def test_the_tables_are_printed_and_nothing_is_written(
    shape: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("COLUMNS", "200")
    dry_run.run(config_for(shape, "backbone.dtype=float32"), length=200)
    shown = capsys.readouterr().out
    for part in (*PHASES, "LoRA phi", "projections", "psi", "synthesizer's KV", "Random weights"):
        assert part in shown
    assert not list(elsewhere.iterdir())


def test_a_dry_run_without_a_tokenizer_says_what_it_needs() -> None:
    with pytest.raises(ValueError, match="give --tokenizer with a folder"):
        dry_run.run(load_config("qwen3-4b"))


def test_a_folder_that_holds_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no tokenizer\.json"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("length", [-1, 0, 3])
def test_a_length_without_room_for_an_answer_is_refused(shape: Path, length: int) -> None:
    with pytest.raises(ValueError, match=f"length={length} leaves a trace no room for a prompt and an answer"):
        dry_run.run(config_for(shape), tokenizer=shape, length=length)


def test_a_tokenizer_that_exceeds_the_vocabulary_is_refused_before_anything_is_built(shape: Path) -> None:
    settings = json.loads((shape / "config.json").read_text())
    (shape / "config.json").write_text(json.dumps(settings | {"vocab_size": 100}))
    with pytest.raises(ValueError, match="they do not belong together"):
        random_backbone(str(shape), tiny.tokenizer())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_random_weights_are_drawn_in_their_dtype_and_the_head_is_tied_where_it_was(family: str, tmp_path: Path) -> None:
    folder = str(without_weights(family, tmp_path))
    backbone = random_backbone(folder, tiny.tokenizer(), dtype="bfloat16", device=torch.device("cpu"))
    assert {parameter.dtype for parameter in backbone.model.parameters()} == {torch.bfloat16}
    assert (backbone.head is backbone.embedding) == tiny.config(family).tie_word_embeddings
    assert float(backbone.embedding.float().std()) == pytest.approx(0.02, rel=0.1)
    biases = [parameter for name, parameter in backbone.model.named_parameters() if name.endswith("bias")]
    assert not any(bias.any() for bias in biases)
    assert len(biases) == tiny.config(family).num_hidden_layers * len(biased_maps(tiny.config(family).to_dict()))
    expected = tiny.build_backbone(family).decoder.rotary_emb.inv_freq
    torch.testing.assert_close(backbone.decoder.rotary_emb.inv_freq, expected)


def test_a_published_config_with_the_older_names_of_its_rotary_settings_is_the_known_shape(tmp_path: Path) -> None:
    """`rope_theta` and `rope_scaling` stand beside each other in the files that Llama 3.2 and SmolLM2 publish."""
    for index, id in enumerate(("meta-llama/Llama-3.2-1B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct")):
        settings = dict(PUBLISHED[id])
        rope = dict(settings.pop("rope_parameters"))
        settings["rope_theta"] = rope.pop("rope_theta")
        settings["rope_scaling"] = None if rope["rope_type"] == "default" else rope
        (tmp_path / str(index)).mkdir()
        (tmp_path / str(index) / "config.json").write_text(json.dumps(settings))
        read, known = architecture(str(tmp_path / str(index))), architecture(id)
        assert read.rope_parameters == known.rope_parameters
        assert read.eos_token_id == known.eos_token_id
        assert Shape.of(read) == Shape.of(known)


def test_the_meter_sees_a_peak_that_is_gone_again() -> None:
    meter, size = Meter(torch.device("cpu")), 200 * 2**20
    with meter.phase("big") as big:
        whole = torch.ones(size // 4)
        time.sleep(0.1)  # longer than the meter takes between two looks, on a busy machine too
        del whole
    with meter.phase("small") as small:
        pass
    assert big.measured > 0.9 * size > 2 * small.measured
    assert psutil.Process().memory_info().rss > 0
