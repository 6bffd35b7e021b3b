"""`tyler push`: a checkpoint to the Hub. What is sent is a checked copy in which nothing of this machine is left."""

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

from tyler.modeling.architectures import shipped
from tyler.modeling.backbone import first_line
from tyler.modeling.checkpoint import MANIFEST, Manifest, is_checkpoint
from tyler.modeling.digests import digest_of
from tyler.modeling.hub import HUB_ID
from tyler.modeling.loading import load_backbone
from tyler.modeling.manifest import NAMES, BackboneRecord, check_files
from tyler.runs.checkpoints import latest_checkpoint
from tyler.sharing.card import evaluations_of, model_card, results_in, saved_fingerprint, training_of

CARD = "README.md"


def run(
    model: str,
    repo: str,
    licence: str = "other",
    private: bool = False,
    dry_run: bool = False,
    backbone: str | None = None,
    evaluations: Sequence[Path] = (),
    revision: str | None = None,
) -> None:
    """Publish the checkpoint at `model` as `repo`, or with `dry_run` show all that would be sent, as `tyler push` does.

    Raises ValueError before anything is sent.
    """
    if not HUB_ID.fullmatch(repo):
        raise ValueError(f"{repo!r} is not the name of a repository on the Hub; give USER/NAME")
    folder = checkpoint_of(model)
    manifest = Manifest.read(folder)
    check_files(folder / MANIFEST, manifest.digests, manifest.files)
    published = replace(manifest, backbone=public_backbone(folder, manifest.backbone, backbone), digests={})
    beside = evaluations_of(Path(model)) if Path(model).exists() else []
    results, others = results_in(
        dict.fromkeys(map(Path.resolve, [*evaluations, *beside])), saved_fingerprint(folder, manifest)
    )
    for other in others:
        print(f"left out, since it is of other weights, or not finished: {other}")
    with tempfile.TemporaryDirectory(prefix="tyler-push-") as temporary:
        copy = Path(temporary)
        stage(folder, published, copy)
        card = model_card(published, repo, licence, training_of(folder, manifest), results)
        (copy / CARD).write_text(card, encoding="utf-8")
        check_private(copy, folder)
        if dry_run:
            show(copy, repo)
        else:
            print(f"{repo} is at {upload(copy, repo, private, revision)}")


def checkpoint_of(model: str) -> Path:
    """The folder of the checkpoint: of a run the newest. Raises ValueError for anything else."""
    folder = shipped(model) or latest_checkpoint(model) or Path(model)
    if not is_checkpoint(folder):
        raise ValueError(f"{model} holds no Tyler checkpoint ({MANIFEST}); give a run or a folder of save_pretrained")
    return folder


def public_backbone(folder: Path, record: BackboneRecord, instead: str | None) -> BackboneRecord:
    """The backbone as others find it. Raises ValueError for a folder of this machine, and for one given `instead` with
    other weights."""
    if instead is None:
        if record.folder is not None or not (record.id in NAMES or HUB_ID.fullmatch(record.id)):
            raise ValueError(
                f"the backbone of {folder} is a folder or a file on this machine; name the same model on the "
                "Hub: --backbone USER/NAME"
            )
        return record
    if Path(instead).exists() or not (instead in NAMES or HUB_ID.fullmatch(instead)):
        raise ValueError(f"--backbone {instead} is not a model on the Hub; give its id, USER/NAME")
    loaded = load_backbone(instead, [folder / name for name in record.merged_adapters], dtype=record.dtype)
    record.check(loaded, folder)
    return replace(record, id=instead, revision=loaded.revision, folder=None)


def stage(folder: Path, manifest: Manifest, copy: Path) -> None:
    """Copy a checkpoint's own files, with a manifest that names no folder of this machine."""
    for name in manifest.files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, copy / name)
    for adapter in manifest.adapters:
        settings = copy / adapter / "adapter_config.json"
        content = json.loads(settings.read_text(encoding="utf-8"))
        content["base_model_name_or_path"] = manifest.backbone.id
        settings.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    manifest.write(copy)


def check_private(copy: Path, folder: Path) -> None:
    """Raise ValueError where a text that is to be sent names this machine's folders or its user's home.

    The texts are made so that they cannot; this is the second lock.
    """
    folders = {str(Path.home()), str(Path.cwd()), str(folder.resolve())} - {"/"}
    named = re.compile("|".join(rf"(?<![\w.-]){re.escape(folder_name)}(?![\w-])" for folder_name in sorted(folders)))
    for path in sorted(copy.rglob("*")):
        if path.suffix in (".json", ".md") and (match := named.search(path.read_text(encoding="utf-8"))):
            raise ValueError(f"{path.relative_to(copy)} would tell others of {match[0]}; nothing was sent")


def show(copy: Path, repo: str) -> None:
    """All that would be sent: every file with its size and digest, and the card."""
    print(f"{repo} would get:")
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        print(f"  {path.relative_to(copy)}  {path.stat().st_size:,} bytes  sha256 {digest_of(path)}")
    print(f"\n{(copy / CARD).read_text(encoding='utf-8')}\nnothing was sent (--dry-run)")


def upload(copy: Path, repo: str, private: bool, revision: str | None) -> str:
    """Send a staged copy in one commit, and return its address. Raises ValueError where the Hub does not take it."""
    published, api = Manifest.read(copy), HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        if private and not api.model_info(repo).private:  # exist_ok leaves a public one public
            raise ValueError(f"{repo} exists and is public, and --private was asked for; choose another name")
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        # An earlier checkpoint may have had a policy that this one lacks.
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=copy,
            revision=revision,
            commit_message=f"Tyler on {published.backbone.id} ({published.stage})",
            delete_patterns=["synthesizer/*", "policy/*"],
        )
        return commit.commit_url
    except OfflineModeIsEnabled as error:
        raise ValueError(
            "HF_HUB_OFFLINE forbids the network; unset it, or look at what would go with --dry-run"
        ) from error
    except (LocalTokenNotFoundError, HfHubHTTPError) as error:
        status = None if isinstance(error, LocalTokenNotFoundError) else error.response.status_code
        if status in (None, 401, 403, 404):  # a repository that may not be read is said not to be there
            raise ValueError(f"the Hub refuses {repo}; run `hf auth login` with a token that may write it") from error
        raise ValueError(f"the Hub did not take {repo}: {first_line(error)}; the same command tries again") from error
