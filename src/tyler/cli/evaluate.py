"""`tyler eval`: from its arguments to the evaluation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tyler.cli.logs import quietly
from tyler.cli.options import Answering, Grading, Matching, Questions, SomeFolder, memory_of, router_of

logger = logging.getLogger(__name__)


def evaluate(
    model: Annotated[Positional[str], arg(metavar="MODEL", help_behavior_hint="")] = "",
    questions: Annotated[Questions, arg(name="")] = Questions(),  # noqa: B008
    answering: Annotated[Answering, arg(name="")] = Answering(),  # noqa: B008
    grading: Annotated[Grading, arg(name="")] = Grading(),  # noqa: B008
    matching: Annotated[Matching, arg(name="")] = Matching(),  # noqa: B008
    output: SomeFolder = None,
    compare: Annotated[tuple[Path, Path] | None, arg(metavar="DIR DIR", help_behavior_hint="")] = None,
    quiet: bool = False,
) -> None:
    """Evaluate a model on tasks: accuracy with its interval, failures by kind, visible and latent tokens.

    A killed evaluation resumes with the same command. Processes of torchrun or accelerate launch share the problems.

    Args:
        model: A saved model, a run, or a plain backbone: mini, smollm2 (see tyler fetch), a folder, a GGUF file or a
            Hub id.
        output: Where reports and answers are kept; by default runs/NAME-eval/TASKS, with
            whatever else is asked in the folder's name.
        compare: Two directories of earlier evaluations: print their paired difference instead.
        quiet: Show no progress, only the result.
    """
    if compare is not None:
        from tyler.evaluation import comparison

        comparison.run(*compare)
        return
    if not model:
        raise ValueError("tyler eval needs a MODEL (a folder or a Hub id), or --compare with two evaluations")
    with quietly(quiet):
        logger.info("loading %s ...", model)
        _evaluate(model, questions, answering, grading, matching, output)


def _evaluate(
    model: str, questions: Questions, answering: Answering, grading: Grading, matching: Matching, output: Path | None
) -> None:
    router, memory = router_of(answering.router), memory_of(answering.memory)
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
        memory=memory,
        backbone=answering.backbone,
        options=GradeOptions(**vars(grading)),
        match=None if match is None else BudgetMatch(match, matching.match_split, match_data),
        output=output,
    )
