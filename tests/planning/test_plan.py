"""The plan against what the config says and transformers reads; and it is quick and light."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from tyler.cli import main
from tyler.config.files import load_config
from tyler.modeling.architectures import FAMILIES, PUBLISHED, settings_of
from tyler.modeling.random_init import architecture
from tyler.planning import plan
from tyler.planning.memory import packed_weights
from tyler.planning.plan import KNOWN, PHASES, Device, device_named, predicted, verdict
from tyler.reasoners.table import TRAININGS
from tyler.training.planned import Shape

# ----------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("id", PUBLISHED)
def test_a_published_shape_is_the_one_that_transformers_builds(id: str) -> None:
    assert Shape.read(settings_of(id)) == Shape.of(architecture(id))


OPTIONAL = dict.fromkeys(tiny.FAMILIES, ("head_dim", "tie_word_embeddings")) | {
    "llama": ("head_dim", "tie_word_embeddings", "num_key_value_heads", "attention_bias", "mlp_bias")
}
"""What a `config.json` may leave out."""


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_folders_shape_is_read_as_transformers_reads_it_with_and_without_its_defaults(
    family: str, tmp_path: Path
) -> None:
    settings = tiny.config(family).to_dict()
    bare = {key: value for key, value in settings.items() if key not in OPTIONAL[family]}
    for name, content in (("full", settings), ("bare", bare)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
        assert Shape.read(settings_of(str(tmp_path / name))) == Shape.of(architecture(str(tmp_path / name)))


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not known here; .*Qwen/Qwen2\.5-0\.5B-Instruct"):
        settings_of("Qwen/Qwen9-900B")
    path = tmp_path / "config.json"
    for text, message in (
        ("{", "is not valid JSON"),
        ("[]", "of type None; supported are"),
        ('{"model_type": "mistral"}', "of type 'mistral'; supported are .* llama, qwen2, qwen3, smollm3"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            settings_of(str(tmp_path))
    path.write_text(json.dumps({**tiny.config("qwen3").to_dict(), "num_key_value_heads": None}))
    with pytest.raises(ValueError, match="'num_key_value_heads'"):
        Shape.read({key: value for key, value in json.loads(path.read_text()).items() if value is not None})
    assert set(FAMILIES) == set(tiny.FAMILIES)


# ------------------------------------------------------------------------------------------------- devices


def test_devices_have_names_or_are_so_many_gigabytes() -> None:
    assert device_named("h100-80gb") is KNOWN["H100-80GB"]
    assert [device.memory for device in KNOWN.values()] == sorted(device.memory for device in KNOWN.values())
    assert device_named("96").memory == 96e9 and device_named("12.5").memory == 12.5e9
    assert device_named("this").memory > 1e9


@pytest.mark.parametrize("name", ["H100", "1,2", "0", "-1", "nan", ""])
def test_an_unknown_device_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(ValueError, match=r"known are RTX-4090, .*'this' is this machine.*--hardware 96"):
        device_named(name)


# ------------------------------------------------------------------------------------------------- what fits

DECODING = ("rollout", "calibration", "stage2", "grpo", "memgen-weaver-grpo", "memgen-trigger")
"""What is decoded before, or in."""


def test_packed_weights_are_counted_where_a_cpu_has_decoded_and_the_stack_is_small_enough() -> None:
    shape, config = Shape.read(settings_of("HuggingFaceTB/SmolLM2-135M-Instruct")), load_config("smollm2-135m")
    (with_packed, without) = (predicted(shape, config, 4, packs) for packs in (True, False))
    head, layer = 49152 * 576, 576 * (2 * 960 + 576 + 3 * 1536)  # queries, keys and values have a LoRA: two copies
    for phase in PHASES:
        own = with_packed[phase].pop("packed weights", None)
        assert own == (4 * (head + 30 * layer) if phase.removesuffix(" step") in DECODING else None)
        assert with_packed[phase] == without[phase]
    large = Shape.read(settings_of("Qwen/Qwen3-4B"))
    assert packed_weights(large, load_config("qwen3-4b"), 2) == {"packed weights": 2 * 151936 * 2560}, "the head alone"


def test_every_training_has_a_plan_which_it_says_itself() -> None:
    assert set(PHASES) == {"calibration", "rollout", *(f"{method} step" for method in TRAININGS)}
    sources = "".join(file.read_text() for file in Path(plan.__file__).parent.glob("*.py"))
    assert not re.search("memgen|softcot|sft", sources, re.IGNORECASE), "a method is planned in its own package"


@pytest.mark.parametrize("preset", ["qwen2.5-1.5b", "smollm3-3b", "qwen3-4b"])
def test_every_method_of_the_papers_presets_fits_80_gigabytes(preset: str) -> None:
    config = load_config(preset)
    shape = Shape.read(settings_of(config.backbone.id))
    assert {phase: verdict(shape, config, phase, KNOWN["A100-80GB"]) for phase in PHASES} == dict.fromkeys(
        PHASES, "fits"
    )


@pytest.mark.parametrize(("room", "expected"), [(1.26, "fits"), (1.24, "tight"), (1.01, "tight"), (0.99, "no")])
def test_what_fits_narrowly_is_tight(room: float, expected: str) -> None:
    config = load_config("qwen3-4b")
    shape = Shape.read(settings_of(config.backbone.id))
    needed = sum(predicted(shape, config, 2)["stage1 step"].values())
    assert verdict(shape, config, "stage1 step", Device("narrow", room * needed)) == expected


@pytest.mark.parametrize(("tokens", "rows"), [("4096", 4), ("auto", 1)])
def test_micro_batches_of_tokens_are_counted_at_the_longest(tokens: str, rows: int) -> None:
    """`auto` as what a device must have room for at least."""
    settings = ("micro_batch_size=null", f"micro_batch_tokens={tokens}", "max_length=1024")
    config = load_config("paper", [f"stage1.{setting}" for setting in settings])
    shape = Shape.read(settings_of(config.backbone.id))
    assert config.rows("stage1") == 8
    assert TRAININGS["stage1"].step(shape, config).reads[0][0].rows == rows


# ------------------------------------------------------------------------------------------------- the command


def test_the_command_makes_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(plan, "run", lambda *given: calls.append(given))
    assert main.main(["plan", "qwen3-4b", "--hardware", "H200", "--hardware", "96", "--decoding.slots", "2"]) == 0
    ((config, *others),) = calls
    assert (config.backbone.id, config.decoding.slots, *others) == ("Qwen/Qwen3-4B", 2, ("H200", "96"), None)


def test_a_plan_shows_parts_and_what_fits_and_nothing_is_cut_on_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert all(name in (main.plan.__doc__ or "") for name in KNOWN)
    assert main.main(["plan", "qwen3-4b", "--decoding.slots", "64"]) == 0
    shown = capsys.readouterr().out
    parts = ("A100", "4,022,468,096", "policy's KV", "optimizer", "memgen-trigger", "fits", "no")
    words = " ".join(shown.replace("│", " ").split())
    assert [part for part in parts if part not in words] == [] and "…" not in shown
    assert main.main(["plan", "mini", "--hardware", "this"]) == 0
    assert "this CPU" in capsys.readouterr().out


def test_a_plan_of_4_billion_parameters_takes_less_than_two_seconds_and_no_torch() -> None:
    code = "import sys; from tyler.cli.main import main; main(['plan', 'qwen3-4b']); print('torch' in sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.endswith("False\n")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
