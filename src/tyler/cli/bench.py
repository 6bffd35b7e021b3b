"""`tyler bench`: how fast a model answers on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from tyler.cli.logs import loading
from tyler.cli.options import AnyModel
from tyler.evaluation.options import Decoding, Loading, OptionalFolder

if TYPE_CHECKING:
    from tyler.engine.trajectory import Trajectory
    from tyler.reasoners.registry import Answerer
    from tyler.tasks import Problem

DECODING, LOADED = Decoding(max_new_tokens=256), Loading()


def bench(
    model: AnyModel,
    task: Annotated[str, arg(metavar="TASK")] = "mini",
    data: OptionalFolder = None,
    count: int = 32,
    slots: Annotated[tuple[int, ...], arg(metavar="N [N ...]")] = (1, 8, 32),
    decoding: Annotated[Decoding, arg(name="")] = DECODING,
    placement: Annotated[Loading, arg(name="")] = LOADED,
) -> None:
    """Measure how fast a model answers here: answers and tokens a second, by how many are decoded at once.

    Every line is one run over the same problems, after a first answer that does not count. Other programs on this
    machine slow it.

    Args:
        task: Whose problems are asked.
        data: A file, or the folder with the task's official files.
        count: How many problems.
        slots: Answers decoded at once, a line of the table for each.
    """
    if count < 1 or min(slots, default=0) < 1:
        raise ValueError(f"--count {count} and --slots {' '.join(map(str, slots))}: each must be at least 1")
    from tyler.tasks import load_problems

    problems = load_problems(task, path=data, count=count)
    sampling = decoding.sampling
    with loading(model):
        answerer = placement.load(model, decoding).answerer()
    requests = [answerer.request(problem.prompt, sampling) for problem in problems]
    answerer.run(requests[:1], slots=1)
    _print_header(model, answerer, task, problems, placement.device)
    for at_once in slots:
        started = time.perf_counter()
        answers = answerer.run(requests, slots=at_once)
        _print_line(at_once, answers, time.perf_counter() - started)


def _print_header(model: str, answerer: Answerer, task: str, problems: list[Problem], device: str | None) -> None:
    import torch

    from tyler.modeling.backbone import best_device
    from tyler.presentation import counted

    used = torch.device(device or best_device())
    where = torch.cuda.get_device_name(used) if used.type == "cuda" else counted(torch.get_num_threads(), "CPU thread")
    print(f"{model}, {answerer.dtype}, {len(problems)} problems of {task}, {where}")
    print(f"{'slots':>6}{'seconds':>10}{'answers/s':>12}{'tokens/s':>12}{'latents/s':>12}{'invocations':>13}")


def _print_line(slots: int, answers: list[Trajectory], seconds: float) -> None:
    tokens = sum(answer.num_visible for answer in answers)
    latents = sum(answer.num_latents for answer in answers)
    calls = sum(answer.num_invocations for answer in answers)
    rates = "".join(f"{amount / seconds:>12.1f}" for amount in (len(answers), tokens, latents))
    print(f"{slots:>6}{seconds:>10.3f}{rates}{calls:>13}", flush=True)
