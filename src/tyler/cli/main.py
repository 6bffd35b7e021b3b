"""The command line. A command parses its arguments and makes one call; the work is in the module it names.

Help must come at once, so nothing heavy is imported up here: a command imports what it runs, after it has read its
settings. tyro keeps to that (0.06 s to import, the whole help in about 0.15 s) and makes the commands plain functions.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

import tyler
from tyler.cli.options import (
    Answering,
    ConfigName,
    Folder,
    Grading,
    Matching,
    ModelName,
    Overrides,
    Questions,
    RouterName,
    SomeFolder,
    SomeNumber,
)

if TYPE_CHECKING:
    from tyler.config.schema import Config
    from tyler.engine.request import Event
    from tyler.engine.routing import Router

USAGE_ERROR = 2
RESUMABLE = ("stage1", "stage2", "train")
"""Commands that go on with --resume."""
OVERRIDABLE = (*RESUMABLE, "plan")
"""Commands that take dotted settings."""
OVERRIDE = re.compile(r"--([a-z_]\w*(?:\.[\w-]+)+)(?:=(.*))?", re.IGNORECASE | re.DOTALL)

TRAINERS = {
    "sft": ("sft", "run"),
    "grpo": ("grpo", "run"),
    "softcot": ("softcot", "run"),
    "memgen": ("memgen.sft", "run"),
    "memgen-weaver-grpo": ("memgen.grpo", "run_weaver"),
    "memgen-trigger": ("memgen.grpo", "run_trigger"),
}
"""The module and the function behind each METHOD of `tyler train`."""

CONTINUING = ("memgen-weaver-grpo", "memgen-trigger")
"""Those that start from a trained weaver."""

DESCRIPTION = (
    "Typed latent reasoning for language models. `tyler COMMAND --help` explains a command, `tyler --version` prints "
    "the version."
)


def quickstart(output: Folder = Path("runs/quickstart"), seed: int = 42, scale: float = 1.0) -> None:
    """Take the shipped mini model through both stages and an evaluation, on a CPU, in minutes.

    Args:
        output: Where everything is written; what an earlier quickstart left there is replaced.
        seed: Seed of training and sampling.
        scale: Multiplies every number of steps and problems: 0.1 is a quick look, 1 the documented run.
    """
    from tyler.cli import quickstart

    quickstart.run(output=output, seed=seed, scale=scale)


def stage1(
    config: ConfigName,
    output: SomeFolder = None,
    resume: bool = False,
    dry_run: bool = False,
    tokenizer: SomeFolder = None,
    length: SomeNumber = None,
    overrides: Overrides = (),
) -> None:
    """Stage 1: train the operators; the backbone stays frozen.

    Args:
        config: A YAML file, or a preset: mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b.
        output: Run directory; by default runs/CONFIG-stage1.
        resume: Continue the run in the output directory from its newest checkpoint.
        dry_run: Train nothing: build the architecture with random weights, take one step of both stages, decode one
            answer, and print parameters, memory and seconds. Needs no weights and writes nothing.
        tokenizer: Of a dry run: the folder of the real tokenizer; by default the backbone's own folder.
        length: Of a dry run: tokens of a Stage 1 trace; by default 256.
        overrides: Change one setting. `--stage1.learning_rate 1e-4` is short for `--set stage1.learning_rate=1e-4`.
    """
    settings = _load_config(config, overrides)
    if _rehearsed(settings, dry_run, tokenizer, length):
        return
    from tyler.training import stage1

    stage1.run(settings, output=output or _run_directory(config, "stage1"), resume=resume)


def stage2(
    config: ConfigName,
    start: SomeFolder = None,
    output: SomeFolder = None,
    resume: bool = False,
    dry_run: bool = False,
    tokenizer: SomeFolder = None,
    length: SomeNumber = None,
    overrides: Overrides = (),
) -> None:
    """Stage 2: train when to invoke which operator; the operators stay frozen.

    Args:
        config: A YAML file, or a preset: mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b.
        start: The Stage 1 run, or a saved model, to start from; by default runs/CONFIG-stage1.
        output: Run directory; by default runs/CONFIG-stage2.
        resume: Continue the run in the output directory from its newest checkpoint.
        dry_run: Train nothing: the same dry run of both stages as `tyler stage1 CONFIG --dry-run`.
        tokenizer: Of a dry run: the folder of the real tokenizer; by default the backbone's own folder.
        length: Of a dry run: tokens of a Stage 1 trace; by default 256.
        overrides: Change one setting. `--grpo.kl_weight 0.01` is short for `--set grpo.kl_weight=0.01`.
    """
    settings = _load_config(config, overrides)
    if _rehearsed(settings, dry_run, tokenizer, length):
        return
    from tyler.training import stage2

    stage2.run(
        settings,
        start=start or _run_directory(config, "stage1"),
        output=output or _run_directory(config, "stage2"),
        resume=resume,
    )


def train(
    method: Annotated[
        Positional[Literal["sft", "grpo", "softcot", "memgen", "memgen-weaver-grpo", "memgen-trigger"]],
        arg(metavar="METHOD"),
    ],
    config: ConfigName,
    start: SomeFolder = None,
    output: SomeFolder = None,
    resume: bool = False,
    overrides: Overrides = (),
) -> None:
    """Train a baseline, on the same problems and by the same loops.

    Args:
        method: sft (fine-tuning on the traces of Stage 1), grpo (Stage 2 on the plain backbone), softcot (soft thoughts
            of an assistant in the prompt), or MemGen: memgen (its weaver on the traces of Stage 1), memgen-weaver-grpo
            and memgen-trigger (which start from a trained weaver).
        config: A YAML file, or a preset: mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b.
        start: The MemGen to start from, for the two methods that do; by default runs/CONFIG-memgen.
        output: Run directory; by default runs/CONFIG-METHOD.
        resume: Continue the run in the output directory from its newest checkpoint.
        overrides: Change one setting. `--sft.learning_rate 1e-4` is short for `--set sft.learning_rate=1e-4`.
    """
    settings = _load_config(config, overrides)
    from importlib import import_module

    module, function = TRAINERS[method]
    if method not in CONTINUING and start is not None:
        raise ValueError(f"tyler train {method} starts from the backbone; --start is for {' and '.join(CONTINUING)}")
    more = {"start": start or _run_directory(config, "memgen")} if method in CONTINUING else {}
    trainer = getattr(import_module(f"tyler.reasoners.{module}"), function)
    trainer(settings, output=output or _run_directory(config, method), resume=resume, **more)


def plan(
    config: ConfigName,
    device: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME")] = (),
    prompt: int = 128,
    trace: int = 600,
    answer: int = 600,
    examples: SomeNumber = None,
    overrides: Overrides = (),
) -> None:
    """Before renting a GPU: what a config trains, the memory of each part, and the time of each stage. Loads nothing.

    Args:
        config: A YAML file, or a preset: mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b.
        device: RTX-4090, A100-40GB, L40S, A100-80GB, H100-80GB, H200, B200; "this" measures this machine; or GB of
            memory, GB/s of bandwidth and bf16 TFLOP/s as "96,1792,250". May be repeated; by default all of them.
        prompt: Tokens of a mean prompt.
        trace: Tokens of a mean solution in Stage 1.
        answer: Actions of a mean answer in Stage 2 and evaluation.
        examples: Training examples, where neither data.count nor a number of steps says how many.
        overrides: Change one setting. `--decoding.slots 64` is short for `--set decoding.slots=64`.
    """
    settings = _load_config(config, overrides)
    from tyler.planning import plan

    plan.run(settings, devices=device, prompt=prompt, target=trace, answer=answer, examples=examples)


def solve(
    model: ModelName,
    question: Annotated[Positional[str], arg(metavar="QUESTION")],
    budget: SomeNumber = None,
    router: RouterName = None,
    temperature: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = 2048,
) -> None:
    """Answer one question, printing tokens and operators as they come.

    Args:
        model: A saved model, Tyler's or a baseline's, or a plain backbone: a folder or a Hub id.
        question: The question; "-" reads it from standard input.
        budget: At most this many invocations; 0 is the model without operators; by default no limit.
        router: learned, never, boundaries or boundaries:0.25 (a share); by default what its last stage trained for.
        temperature: 0 is greedy.
        seed: Seed of sampling.
        max_new_tokens: At most this many actions.
    """
    chosen = _router(router)
    from tyler.engine.sampling import Sampling
    from tyler.reasoners import registry

    events = registry.stream(
        model,
        sys.stdin.read() if question == "-" else question,
        budget=budget,
        router=chosen,
        sampling=Sampling(temperature=temperature, seed=seed),
        max_new_tokens=max_new_tokens,
    )
    _show(events)


def evaluate(
    model: Annotated[Positional[str], arg(metavar="MODEL", help_behavior_hint="")] = "",
    questions: Annotated[Questions, arg(name="")] = Questions(),  # noqa: B008
    answering: Annotated[Answering, arg(name="")] = Answering(),  # noqa: B008
    grading: Annotated[Grading, arg(name="")] = Grading(),  # noqa: B008
    matching: Annotated[Matching, arg(name="")] = Matching(),  # noqa: B008
    output: SomeFolder = None,
    compare: Annotated[tuple[Path, Path] | None, arg(metavar="DIR DIR", help_behavior_hint="")] = None,
) -> None:
    """Evaluate a model on tasks: accuracy with its interval, failures by kind, visible and latent tokens.

    A killed evaluation goes on with the same command. Processes of torchrun or accelerate launch share the problems.

    Args:
        model: A saved model, a run, or a plain backbone: a folder or a Hub id.
        output: Where reports and answers are kept; by default runs/NAME-eval.
        compare: Two directories of earlier evaluations: print their paired difference instead.
    """
    if compare is not None:
        from tyler.evaluation import comparison

        comparison.run(*compare)
        return
    if not model:
        raise ValueError("tyler eval needs a MODEL (a folder or a Hub id), or --compare with two evaluations")
    router = _router(answering.router)
    from tyler.evaluation import command
    from tyler.evaluation.budget_matching import BudgetMatch
    from tyler.tasks.task import GradeOptions

    match, match_data = matching.match, matching.match_data or questions.data_dir
    command.run(
        model,
        tasks=questions.task,
        split=questions.split,
        data=questions.data_dir,
        count=questions.count,
        method=answering.method,
        method_settings=answering.method_set,
        router=router,
        budget=answering.budget,
        max_new_tokens=answering.max_new_tokens,
        slots=answering.slots,
        options=GradeOptions(**vars(grading)),
        match=None if match is None else BudgetMatch(match, matching.match_split, match_data),
        output=output,
    )


def merge(
    model: ModelName,
    output: Annotated[Positional[Path], arg(metavar="OUTPUT")],
) -> None:
    """Write a fine-tuned model (sft or grpo) as an ordinary model folder, its LoRA added to the weights.

    Args:
        model: A run or checkpoint of `tyler train sft` or `tyler train grpo`.
        output: The folder to write; it must not exist yet.
    """
    from tyler.training import merging

    merging.run(model, output)


def doctor() -> None:
    """Print what this machine offers: device, dtypes, versions, cores, memory, disk, Hub; and what each limits."""
    from tyler.cli import doctor

    doctor.run()


COMMANDS: dict[str, Callable[..., None]] = {
    "quickstart": quickstart,
    "stage1": stage1,
    "stage2": stage2,
    "train": train,
    "plan": plan,
    "solve": solve,
    "eval": evaluate,
    "merge": merge,
    "doctor": doctor,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, 2 for a user's error, 128 + n for signal n.

    A user's error is one line on stderr; `TYLER_DEBUG=1` shows its traceback.
    """
    try:
        return _dispatch(list(sys.argv[1:] if argv is None else argv) or ["--help"])
    except KeyboardInterrupt as interrupt:
        return _after_interrupt(interrupt, list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:  # `tyler ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, OSError, FloatingPointError) as error:
        if os.environ.get("TYLER_DEBUG"):
            traceback.print_exc()
        return _refuse(str(error) or type(error).__name__)


def _dispatch(argv: list[str]) -> int:
    command = argv[0]
    if command == "--version":
        print(f"tyler {tyler.__version__}")
        return 0
    if not command.startswith("-") and command not in COMMANDS:
        close = get_close_matches(command, COMMANDS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        return _refuse(f"there is no command {command!r}{hint} commands: {', '.join(COMMANDS)}")
    one_way = (tyro.conf.FlagCreatePairsOff,)
    if command.startswith("-"):
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="tyler", description=DESCRIPTION, args=argv, config=one_way)
        return 0
    arguments = fold_overrides(argv[1:]) if command in OVERRIDABLE else argv[1:]
    tyro.cli(COMMANDS[command], prog=f"tyler {command}", args=arguments, config=one_way)
    return 0


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
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    place = f"process {os.environ.get('RANK')}: " if several else ""
    print(f"tyler: {place}{message}", file=sys.stderr)
    return USAGE_ERROR


def _after_interrupt(interrupt: KeyboardInterrupt, argv: Sequence[str]) -> int:
    from tyler.runs.signals import Interrupted

    if isinstance(interrupt, Interrupted):
        print(f"tyler: {interrupt}", file=sys.stderr)
        if argv[0] in RESUMABLE:
            flags = [argument for argument in argv if argument != "--resume"]
            print(f"the command is: tyler {shlex.join([*flags, '--resume'])}", file=sys.stderr)
        elif argv[0] == "quickstart":
            print("tyler quickstart itself cannot go on; run it again, and it begins anew", file=sys.stderr)
        return 128 + interrupt.signum
    print("tyler: interrupted", file=sys.stderr)
    return 128 + signal.SIGINT


def _load_config(config: str, overrides: Sequence[str]) -> Config:
    from tyler.config.files import load_config

    return load_config(config, overrides)


def _rehearsed(settings: Config, dry_run: bool, tokenizer: Path | None, length: int | None) -> bool:
    """Whether a dry run was asked for; if so it has been made."""
    if not dry_run:
        if tokenizer is not None or length is not None:
            raise ValueError("--tokenizer and --length belong to --dry-run; the backbone brings its own tokenizer")
        return False
    from tyler.planning import dry_run as rehearsal

    rehearsal.run(settings, tokenizer=tokenizer, length=length)
    return True


def _run_directory(config: str, stage: str) -> Path:
    return Path("runs") / f"{Path(config).name.removesuffix('.yaml')}-{stage}"


def _router(text: str | None) -> Router | None:
    from tyler.engine.routing import router_named

    return None if text is None else router_named(text)


def _show(events: Iterable[Event]) -> None:
    """Print the tokens of one answer, and each operator where it was invoked, in its own colour."""
    from rich.console import Console
    from rich.text import Text

    from tyler.cli.display import Palette
    from tyler.engine.request import FinishEvent, InvocationEvent, TokenEvent

    console, palette = Console(highlight=False, soft_wrap=True), Palette()
    for event in events:
        match event:
            case TokenEvent():
                console.print(Text(event.text), end="")
            case InvocationEvent(invocation=invocation):
                console.print(palette.mark(invocation), end="")
            case FinishEvent(trajectory=trajectory):
                counts = f"{trajectory.num_visible} visible tokens, {trajectory.num_latents} latents"
                calls = f"{trajectory.num_invocations} invocations"
                console.print(Text(f"\n{counts} in {calls}; finished by {trajectory.finish_reason}", style="dim"))
