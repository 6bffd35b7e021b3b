"""A model that is pushed to a Hub is the model that others find there, and nothing private goes along."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import constants
from peft import PeftModel
from tests import tiny
from tests.hub import Hub, Repo
from transformers import AutoModelForCausalLM

from stored import interrupt, keep
from tyler.cli.main import main
from tyler.engine.trajectory import Invocation
from tyler.evaluation.answers import Record
from tyler.evaluation.command import default_folder
from tyler.evaluation.options import EvaluationRequest
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.checkpoint import Manifest
from tyler.modeling.lora import ADAPTER_FILES
from tyler.modeling.manifest import CheckpointError
from tyler.modeling.policy import Policy
from tyler.runs.run import Run
from tyler.sharing import push
from tyler.sharing.card import evaluations_of, saved_fingerprint
from tyler.tasks import Outcome

REPO = "someone/tiny-tyler"


def trained() -> Tyler:
    """A tiny model as Stage 2 leaves one."""
    return tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=0.7).at_stage("stage2")


@pytest.fixture()
def published(the_hub: Hub, tmp_path: Path) -> Hub:
    """A Hub with the backbone of the tiny model."""
    backbone, folder = trained().backbone, tmp_path / "backbone"
    tiny.save(backbone, folder)
    the_hub.repos["base/model"] = Repo(private=False)
    the_hub.repos["base/model"].commit("main", {path.name: path.read_bytes() for path in folder.iterdir()})
    return the_hub


@pytest.fixture()
def run(tmp_path: Path) -> Path:
    """A run on the published backbone, whose records name private places."""
    model = trained()
    model = replace(model, backbone=replace(model.backbone, id="base/model"))
    text = "data: {task: jsonl, path: /data/patients.jsonl}\ntracking: {project: moonshot}\n"
    with Run.create(tmp_path / "hush-hush" / "mine", text) as run:
        run.check_provenance({"the training examples": "0123456789abcdef"})
        run.save_checkpoint(3, model.save_pretrained)
    return run.path


def evaluated(run: Path, weights: str, name: str = "gsm8k") -> Path:
    """An evaluation beside a run: three of four answers are right."""
    folder = run.with_name(f"{run.name}-eval") / name
    folder.mkdir(parents=True)
    settings = {"weights": weights, "problems": {"gsm8k": "4, sha256 0123456789abcdef"}, "max_new_tokens": 64}
    settings |= {"model": str(run), "method_settings": {"router": "Learned()", "budget": 5}}
    settings |= {"sampling": {"temperature": 0.0}, "samples": 1}
    (folder / "settings.json").write_text(json.dumps(settings))
    call = Invocation("global", 0, 0, 5, 0)
    common = {"family": "", "level": 0, "gold": "1", "answer": "1", "finish_reason": "eos", "invocations": (call,)}
    common |= {"visible_tokens": 10, "latents": 5, "seconds": 1.0, "synthesis_seconds": 0.1}
    verdicts = [Outcome.CORRECT] * 3 + [Outcome.WRONG]
    records = [
        Record(task="gsm8k", id=f"problem-{n}", prompt="a patient", text="her answer", outcome=verdict, **common)
        for n, verdict in enumerate(verdicts)
    ]
    keep(folder, records)
    return folder


def weights_of(run: Path) -> str:
    folder = run / "checkpoints" / "step-3"
    return saved_fingerprint(folder, Manifest.read(folder))


def test_evaluations_are_found_from_within_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = evaluated(run, weights_of(run))
    for inside, model in ((run, "."), (run, "checkpoints/step-3"), (run / "checkpoints" / "step-3", ".")):
        monkeypatch.chdir(inside)
        assert evaluations_of(Path(model)) == [folder]


@pytest.mark.parametrize("model", ["a/stage2", "a/stage2/checkpoints/step-3"])
def test_evaluations_are_found_where_tyler_eval_puts_them_and_listed_once(
    model: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "runs" / "a" / "stage2")
    named = default_folder(f"runs/{model}", EvaluationRequest())
    named.parent.mkdir(parents=True)
    shutil.move(evaluated(run, weights_of(run)), named)
    assert main(["push", f"runs/{model}", REPO, "--dry-run", "--evaluation", str(named)]) == 0
    assert capsys.readouterr().out.count("3/4") == 1


# ------------------------------------------------------------------------------------------------ there and back


def test_a_pushed_run_is_the_same_model_for_whoever_finds_it(published: Hub, run: Path) -> None:
    assert main(["push", str(run), REPO]) == 0
    model, loaded = trained(), Tyler.from_pretrained(REPO, device="cpu")
    assert loaded.stage == "stage2" and loaded.backbone.id == "base/model" and loaded.operators == model.operators
    texts = [answer.text for answer in model.solve(list(tiny.PROMPTS), max_new_tokens=12)]
    assert [answer.text for answer in loaded.solve(list(tiny.PROMPTS), max_new_tokens=12)] == texts
    assert loaded.fingerprint() == model.fingerprint() == weights_of(run)
    assert set(published.repos[REPO].files()) == {
        "README.md", "tyler.json", "operators.safetensors",
        *(f"{part}/{name}" for part in ("policy", "synthesizer") for name in ADAPTER_FILES),
    }  # fmt: skip


def test_a_revision_is_a_branch_or_a_commit_of_it(published: Hub, run: Path) -> None:
    push.run(str(run), REPO)
    first = published.repos[REPO].branches["main"]
    later = trained()
    with torch.no_grad():
        later.policy.psi.mul_(2)
    later = replace(later, backbone=replace(later.backbone, id="base/model"))
    later.save_pretrained(run.parent / "later")
    push.run(str(run.parent / "later"), REPO, revision="v2")
    psi = trained().policy.psi
    for location, options, scale in (
        (REPO, {}, 1),
        (f"{REPO}@v2", {}, 2),
        (REPO, {"revision": "v2"}, 2),
        (f"{REPO}@{first}", {}, 1),
    ):
        assert torch.equal(Tyler.from_pretrained(location, **options).policy.psi, psi * scale)
    with pytest.raises(ValueError, match="two revisions"):
        Tyler.from_pretrained(f"{REPO}@v2", revision="main")
    with pytest.raises(ValueError, match="has no revisions"):
        Tyler.from_pretrained("mini", revision="main")
    with pytest.raises(FileNotFoundError, match="no such branch, tag or commit"):
        Tyler.from_pretrained(f"{REPO}@v3")


def test_what_was_found_once_is_found_without_a_network(
    published: Hub, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push.run(str(run), REPO)
    Tyler.from_pretrained(REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Tyler.from_pretrained(REPO).fingerprint() == weights_of(run)
    with pytest.raises(FileNotFoundError, match="no copy in the cache"):
        Tyler.from_pretrained("someone/else")


def test_a_backbone_by_its_id_is_no_tyler(published: Hub) -> None:
    loaded = Tyler.from_pretrained("base/model@main")
    assert loaded.stage == "backbone" and loaded.backbone.revision == "main"
    assert loaded.backbone.fingerprint() == trained().backbone.fingerprint()


def test_plain_peft_loads_the_adapters(published: Hub, run: Path) -> None:
    push.run(str(run), REPO)
    model, ids = trained(), torch.tensor([tiny.ids(tiny.MEDIUM)])
    for name, part in (("policy", model.policy), ("synthesizer", model.synthesizer)):
        plain = AutoModelForCausalLM.from_pretrained("base/model", dtype=torch.float32)
        adapted = PeftModel.from_pretrained(plain, REPO, subfolder=name).eval()
        assert adapted.peft_config["default"].base_model_name_or_path == "base/model"
        with torch.no_grad():
            expected = part.decoder(ids).last_hidden_state
            hidden = adapted.base_model.model.model(ids).last_hidden_state
            bare = model.backbone.decoder(ids).last_hidden_state
        torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(bare, expected, atol=1e-2), "the adapter does something"


# ------------------------------------------------------------------------------------------------ the card


def test_the_card_tells_how_it_was_made_and_measured_and_nothing_private(published: Hub, run: Path) -> None:
    evaluated(run, weights_of(run))
    evaluated(run, "another model", "other")
    push.run(str(run), REPO)
    files = published.repos[REPO].files()
    card = files["README.md"].decode()
    assert "base_model: base/model" in card and "after step 3" in card
    indexed = yaml.safe_load(card.split("---")[1])
    assert indexed["license"] == "other" and indexed["model-index"][0]["results"][0]["metrics"][0]["value"] == 75.0
    assert "| grpo.budget | 5 |" in card and "| lora.target_modules | q_proj, v_proj |" in card
    assert "Problems of the author's own: all problems." in card and "`0123456789abcdef`" in card
    assert "| GSM8K | 3/4 | 75.0% | 30.1–95.4 | 10.0 | 5.0 | 1.00 | `Learned()` | 5 |" in card
    assert card.count("| GSM8K |") == 1 and "## Limits" in card
    sent = b"".join(content for name, content in files.items() if not name.endswith(".safetensors")).decode()
    for private in ("patient", 'answer"', "her answer", "moonshot", "hush-hush", str(run), "problem-1", "/data"):
        assert private not in sent, private


def test_of_an_evaluation_that_is_not_finished_nothing_is_published(
    published: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(evaluated(run, weights_of(run)), 3)
    push.run(str(run), REPO)
    assert "No evaluation of exactly these weights" in published.repos[REPO].files()["README.md"].decode()
    assert "or not finished" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="holds no evaluation"):
        push.run(str(run), REPO, evaluations=(run / "nowhere",))


def test_the_card_says_how_answers_were_drawn(published: Hub, run: Path) -> None:
    settings = evaluated(run, weights_of(run)) / "settings.json"
    content = json.loads(settings.read_text()) | {"samples": 2}
    content["sampling"] = {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "seed": 3}
    content["problems"] = {"gsm8k": "2, sha256 0123456789abcdef"}
    settings.write_text(json.dumps(content))
    push.run(str(run), REPO)
    card = published.repos[REPO].files()["README.md"].decode()
    assert "temperature 0.7, seed 3, 2 answers each, up to 64 actions" in card and "greedy" not in card.lower()


def test_a_checkpoint_that_stands_alone_says_that_its_records_are_missing(the_hub: Hub) -> None:
    push.run("mini-tyler", REPO)
    card = the_hub.repos[REPO].files()["README.md"].decode()
    assert "without the records of its run" in card and "No evaluation of exactly these weights" in card
    assert Tyler.from_pretrained(REPO).fingerprint() == Tyler.from_pretrained("mini-tyler").fingerprint()


def test_a_dry_run_shows_everything_and_sends_nothing(
    published: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(run), REPO, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "policy/adapter_model.safetensors" in printed and "## Limits" in printed and "nothing was sent" in printed
    assert REPO not in published.repos


def test_a_later_push_leaves_nothing_of_an_earlier_one(published: Hub, run: Path) -> None:
    push.run(str(run), REPO)
    model = trained().at_stage("stage1")
    model = replace(model, policy=Policy(model.backbone, 3), backbone=replace(model.backbone, id="base/model"))
    model.save_pretrained(run.parent / "stage1")
    push.run(str(run.parent / "stage1"), REPO)
    assert not [name for name in published.repos[REPO].files() if name.startswith("policy/")]
    assert Tyler.from_pretrained(REPO).stage == "stage1"


# ------------------------------------------------------------------------------------------------ refusals


def test_a_changed_file_is_not_sent(published: Hub, run: Path) -> None:
    tensors = run / "checkpoints" / "step-3" / "operators.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"operators\.safetensors changed since"):
        push.run(str(run), REPO)
    assert REPO not in published.repos


def test_a_backbone_of_this_machine_needs_its_public_name(published: Hub, tmp_path: Path) -> None:
    backbone = Backbone.load(str(tmp_path / "backbone"))
    model = replace(trained(), backbone=backbone)
    model.save_pretrained(tmp_path / "local")
    with pytest.raises(ValueError, match="--backbone USER/NAME"):
        push.run(str(tmp_path / "local"), REPO)
    with pytest.raises(ValueError, match="is not a model on the Hub"):
        push.run(str(tmp_path / "local"), REPO, backbone=str(tmp_path / "backbone"))
    with pytest.raises(CheckpointError, match="fingerprint"):
        push.run(str(tmp_path / "local"), REPO, backbone="mini")
    assert REPO not in published.repos
    push.run(str(tmp_path / "local"), REPO, backbone="base/model")
    shutil.rmtree(tmp_path / "backbone")
    assert Tyler.from_pretrained(REPO).fingerprint() == trained().fingerprint()
    assert str(tmp_path).encode() not in b"".join(published.repos[REPO].files().values())


def test_a_text_that_names_a_place_of_this_machine_stops_the_push(published: Hub, run: Path) -> None:
    model = trained()
    wording = replace(model.prompt, instruction=f"Look into {Path.home()}/notes first.")
    model = replace(model, prompt=wording, backbone=replace(model.backbone, id="base/model"))
    model.save_pretrained(run.parent / "telling")
    with pytest.raises(ValueError, match="would tell others of"):
        push.run(str(run.parent / "telling"), REPO)
    assert REPO not in published.repos


def test_private_is_private_or_nothing(published: Hub, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push.run(str(run), REPO, private=True)
    assert published.repos[REPO].private
    published.repos["someone/public"] = Repo(private=False)
    with pytest.raises(ValueError, match="is public"):
        push.run(str(run), "someone/public", private=True)
    assert published.repos["someone/public"].files() == {}
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(ValueError, match="hf auth login"):
        push.run(str(run), "someone/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE"):
        push.run(str(run), REPO)


@pytest.mark.parametrize("repo", ["someone", "a/b/c", "some one/x", "../x"])
def test_a_name_that_no_repository_has_is_refused(repo: str) -> None:
    with pytest.raises(ValueError, match="USER/NAME"):
        push.run("mini-tyler", repo)
    with pytest.raises(ValueError, match=r"holds no Tyler checkpoint"):
        push.run("mini", "someone/x")
