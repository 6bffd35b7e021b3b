"""The command line. A command parses its arguments and makes one call; the work is in the module it names.

Help must come at once, so nothing heavy is imported up here: a command imports what it runs, after it has read its
settings. tyro keeps to that, and makes the commands plain functions.
"""

import os
import re
import shlex
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

import tyler
from tyler.cli.bench import bench
from tyler.cli.catalogue import config, report, runs
from tyler.cli.chat import chat
from tyler.cli.evaluate import evaluate, grade
from tyler.cli.fetch import fetch
from tyler.cli.lens import lens
from tyler.cli.logs import plain_lines, quietly
from tyler.cli.options import AnyModel, ConfigName, Folder, ModelName, Overrides, load_settings
from tyler.cli.reproduce import reproduce
from tyler.cli.serve import serve, with_config
from tyler.cli.solve import solve
from tyler.cli.train import STAGES, train
from tyler.evaluation.options import Dtype, OptionalBackbone, OptionalDevice
from tyler.reasoners.table import TRAININGS, find_training
from tyler.runs import threads
from tyler.runs.signals import Interrupted, unwinding

USAGE_ERROR = 2
OVERRIDABLE = ("train", "plan", "config")
"""Commands that take dotted settings."""
OVERRIDE = re.compile(r"--([a-z_]\w*(?:\.[\w-]+)+)(?:=(.*))?", re.IGNORECASE | re.DOTALL)
HELP_WIDTH = 80
LOWER = dict.fromkeys(
    ("quickstart", "train", "plan"),
    "Lower micro_batch_size or micro_batch_tokens of what is trained, or set its gradient_checkpointing: true; for "
    "rollouts lower decoding.slots, bound decoding.memory (8GB) or lower max_new_tokens. `tyler plan CONFIG` says "
    "how much each phase needs, and on which device it fits.",
)
LOWER_FLAGS = (
    "Lower --slots, bound what answers hold with --memory 8GB, lower --max-new-tokens, or load fewer bytes: --dtype "
    "bfloat16 or a smaller model."
)
"""What to do where there is no memory left, with a config and without."""


def quickstart(
    output: Folder = Path("runs/quickstart"), seed: int = 42, scale: float = 1.0, quiet: bool = False
) -> None:
    """Show an answer of the shipped mini-tyler, then train such a model and evaluate it, on a CPU in minutes.

    Args:
        output: Where everything is written; what an earlier quickstart left there is replaced.
        seed: Seed of training and sampling.
        scale: Multiplies every number of steps and problems: 0.1 is a quick look, 1 the documented run.
        quiet: Show no progress, only the result.
    """
    from tyler.cli import quickstart

    with quietly(quiet):
        quickstart.run(output=output, seed=seed, scale=scale)


def plan(
    config: ConfigName,
    hardware: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME")] = (),
    method: Annotated[str | None, arg(metavar="FILE.py:NAME", help_behavior_hint="")] = None,
    overrides: Overrides = (),
) -> None:
    """Before renting a GPU: what a config trains, and the memory of each phase of every method. Loads nothing.

    Args:
        hardware: RTX-4090, A100-40GB, L40S, A100-80GB, H100-80GB, H200, B200; "this" is this machine; or GB of memory.
            May be repeated; by default all of them.
        method: A method of your own to plan besides.
    """
    settings = load_settings(config, overrides, None if method is None else find_training(method))
    from tyler.planning import plan

    plan.run(settings, hardware, method)


def merge(
    model: ModelName,
    output: Folder,
    backbone: OptionalBackbone = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    force: bool = False,
) -> None:
    """Write a fine-tuned model (sft or grpo) as an ordinary model folder, its LoRA added to the weights.

    Args:
        model: A run or checkpoint of `tyler train sft` or `tyler train grpo`.
        output: The folder to write; it must not exist yet.
        dtype: What the weights are rounded to. Half precision keeps only large adapters.
        force: Write the folder even where less than 99% of the adapter survives rounding.
    """
    from tyler.modeling.backbone import DTYPES
    from tyler.training import merging

    merging.run(model, output, backbone, DTYPES[dtype], force=force)


def push(
    model: ModelName,
    repo: Annotated[Positional[str], arg(metavar="REPO")],
    license: Annotated[str, arg(metavar="NAME")] = "other",
    private: bool = False,
    dry_run: bool = False,
    backbone: Annotated[str | None, arg(metavar="USER/NAME", help_behavior_hint="")] = None,
    evaluation: Annotated[UseAppendAction[tuple[Path, ...]], arg(metavar="DIR")] = (),
    revision: Annotated[str | None, arg(metavar="BRANCH", help_behavior_hint="")] = None,
) -> None:
    """Publish a trained Tyler on the Hugging Face Hub, with a card made from its run's own records.

    Args:
        model: A run, of which the newest checkpoint is taken, or a checkpoint.
        repo: Where, as USER/NAME; it is created if it does not exist.
        license: The licence of the model, by the Hub's name, such as apache-2.0; the backbone's licence may decide it.
        private: Only its owner may read it. One that exists and is public is refused.
        dry_run: Check everything, print the files and the card, and send nothing.
        backbone: The Hub id of a backbone that was a folder here; it must have the same weights.
        evaluation: A folder of `tyler eval` whose results go into the card, besides those in RUN-eval beside the run.
            May be repeated; one of other weights, or not finished, is left out.
        revision: A branch to publish to; by default main.
    """
    from tyler.sharing import push

    push.run(
        model,
        repo,
        licence=license,
        private=private,
        dry_run=dry_run,
        backbone=backbone,
        evaluations=evaluation,
        revision=revision,
    )


def info(model: AnyModel, json_: Annotated[bool, arg(name="json")] = False) -> None:
    """Print what a model is: its method, its operators, its backbone and the backbone's size. Loads no weights.

    Args:
        json_: One JSON object instead of a table.
    """
    from tyler.cli import info

    info.run(model, as_json=json_)


def doctor(
    model: Annotated[Positional[str | None], arg(metavar="[MODEL]", help_behavior_hint="")] = None,
    device: OptionalDevice = None,
    dtype: Dtype = "auto",
) -> None:
    """Print what this machine offers, or what MODEL needs and whether this machine has it.

    Args:
        model: A saved model, a run, a plain backbone's name or folder, a GGUF file or a Hub id. It is loaded.
    """
    from tyler.cli import doctor

    if model is None:
        doctor.run()
    else:
        doctor.describe(model, device, dtype)


def completion(shell: Annotated[Positional[Literal["bash", "zsh", "tcsh"]], arg(metavar="SHELL")]) -> None:
    """Print the completion script of a shell, as in `source <(tyler completion bash)`.

    Args:
        shell: bash, zsh or tcsh.
    """
    sys.argv[1:] = []  # tyro looks for its own flags there too
    tyro.extras.subcommand_cli_from_dict(
        COMMANDS, prog="tyler", args=["--tyro-print-completion", shell], config=(tyro.conf.FlagCreatePairsOff,)
    )


GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "first steps": {"quickstart": quickstart, "fetch": fetch, "doctor": doctor, "completion": completion},
    "answer": {"solve": solve, "chat": chat, "serve": serve, "lens": lens},
    "train": {"plan": plan, "config": config, "train": train, "runs": runs, "report": report},
    "measure": {"eval": evaluate, "grade": grade, "bench": bench, "reproduce": reproduce},
    "share": {"info": info, "merge": merge, "push": push},
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def overview() -> str:
    """The help without a command: the first sentence of each, in groups."""
    lines = ["usage: tyler COMMAND ...", "", "Typed latent reasoning for language models."]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, command in group.items():
            about = (command.__doc__ or "").strip().partition("\n\n")[0]
            lines += textwrap.wrap(
                " ".join(about.split()), HELP_WIDTH, initial_indent=f"  {name:12}", subsequent_indent=" " * 14
            )
    return "\n".join([*lines, "", "`tyler COMMAND --help` explains a command; -V or --version prints the version."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, 2 for a user's error, 128 + n for signal n.

    A user's error is one line on stderr; `TYLER_DEBUG=1` shows its traceback.
    """
    argv = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    argv = ["train", *argv] if argv[0] in STAGES else argv  # `tyler stage1` is short for `tyler train stage1`
    try:
        with unwinding(), plain_lines():
            return _dispatch(argv)
    except KeyboardInterrupt as interrupt:
        return _after_interrupt(interrupt, argv)
    except BrokenPipeError:  # `tyler ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get("TYLER_DEBUG"):
            traceback.print_exc()
        return _refuse(_in_words(error))
    except (RuntimeError, MemoryError) as error:
        from tyler.modeling.memory_errors import is_out_of_memory

        first: BaseException = error
        while first.__cause__ is not None:  # the engine's thread tells its callers by an error of its own
            first = first.__cause__
        if not is_out_of_memory(first) or os.environ.get("TYLER_DEBUG"):
            raise
        reason = str(first).strip().partition("\n")[0]
        cause = f": {reason}" if reason else ""
        return _refuse(f"tyler {argv[0]} ran out of memory{cause}\n{LOWER.get(argv[0], LOWER_FLAGS)}")


def _in_words(error: Exception) -> str:
    """A user's error in words. Readers of files name the file, so text without one that is not UTF-8 is from a pipe."""
    if isinstance(error, UnicodeDecodeError):
        return (
            f"standard input is not UTF-8 ({error.reason} at byte {error.start}); convert it first, for instance with "
            "`iconv -f latin1 -t utf-8`"
        )
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _dispatch(argv: list[str]) -> int:
    command = argv[0]
    if command in ("-V", "--version"):
        print(f"tyler {tyler.__version__}")
        return 0
    if command in ("-h", "--help"):
        print(overview())
        return 0
    if command not in COMMANDS:
        return _refuse(_unknown("command", command, COMMANDS, also=STAGES))
    if command == "train" and len(argv) > 1 and argv[1] not in TRAININGS and not re.search("^-|:", argv[1]):
        unknown = _unknown("method", argv[1], TRAININGS)
        return _refuse(f"{unknown}; it comes before the config: tyler train stage1 mini")
    arguments = fold_overrides(argv[1:]) if command in OVERRIDABLE else argv[1:]
    arguments = with_config(arguments) if command == "serve" else arguments
    threads.fit()
    tyro.cli(COMMANDS[command], prog=f"tyler {command}", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    return 0


def _unknown(kind: str, name: str, known: Iterable[str], also: Iterable[str] = ()) -> str:
    close = get_close_matches(name, [*known, *also], n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"there is no {kind} {name!r}{hint} {kind}s: {', '.join(known)}"


def fold_overrides(argv: Sequence[str]) -> list[str]:
    """The arguments, with `--grpo.kl_weight 0.01` (or `=0.01`) written as `--set grpo.kl_weight=0.01`."""
    folded: list[str] = []
    remaining = iter(argv)
    for argument in remaining:
        if (dotted := OVERRIDE.fullmatch(argument)) is None:
            folded.append(argument)
            continue
        key, value = dotted.groups()
        if value is None and ((value := next(remaining, None)) is None or value.startswith("--")):
            raise ValueError(f"--{key} needs a value: --{key} VALUE")
        folded += ["--set", f"{key.replace('-', '_')}={value}"]
    return folded


def _refuse(message: str) -> int:
    process = f"process {os.environ.get('RANK')}: " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
    print(f"tyler: {process}{message}", file=sys.stderr)
    return USAGE_ERROR


def _after_interrupt(interrupt: KeyboardInterrupt, argv: Sequence[str]) -> int:
    if isinstance(interrupt, Interrupted):
        print(f"tyler: {interrupt}", file=sys.stderr)
        if argv[0] == "train" and interrupt.resumes:
            flags = [argument for argument in argv if argument != "--resume"]
            print(f"the command is: tyler {shlex.join([*flags, '--resume'])}", file=sys.stderr)
        elif argv[0] == "quickstart":
            print("tyler quickstart cannot resume; run it again, and it starts from the beginning", file=sys.stderr)
        return 128 + interrupt.signum
    print("tyler: interrupted", file=sys.stderr)
    return 128 + signal.SIGINT
