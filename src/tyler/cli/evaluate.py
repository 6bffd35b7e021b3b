"""`tyler eval`: from its arguments to the evaluation."""

import logging
from itertools import chain
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tyler.cli.logs import quietly
from tyler.cli.options import ANY_MODEL
from tyler.evaluation.options import EvaluationRequest, OptionalFolder, flags_of
from tyler.tasks.problem import GradeOptions

logger = logging.getLogger(__name__)

DEFAULT = EvaluationRequest()


def evaluate(
    model: Annotated[Positional[str], arg(metavar="MODEL", help=ANY_MODEL, help_behavior_hint="")] = "",
    request: Annotated[EvaluationRequest, arg(name="")] = DEFAULT,
    output: OptionalFolder = None,
    compare: Annotated[tuple[Path, ...], arg(metavar="DIR DIR [DIR ...]", help_behavior_hint="")] = (),
    quiet: bool = False,
) -> None:
    """Evaluate a model on tasks: accuracy with its interval, failures by kind, visible and latent tokens.

    A killed evaluation resumes with the same command. Processes of torchrun or accelerate launch share the problems.

    Args:
        output: Where reports and answers are kept; by default runs/NAME-eval/TASKS, with
            whatever else is asked in the folder's name.
        compare: Two or more directories of earlier evaluations: print the paired difference of each to the first.
        quiet: Show no progress, only the result.
    """
    if compare:
        if len(compare) < 2:
            raise ValueError(f"--compare needs two or more evaluations, got only {compare[0]}; name another directory")
        groups = (request.questions, request.answering, request.matching, request.server)
        if given := [*filter(None, (model, output and "--output")), *chain.from_iterable(map(flags_of, groups))]:
            raise ValueError(f"--compare reads evaluations that are there and asks nothing; omit {given[0]}")
        from tyler.evaluation import comparison

        comparison.run(*compare, mode=request.grading.mode)
        return
    endpoint = request.server.endpoint
    if not model and not endpoint:
        raise ValueError(
            "tyler eval needs a MODEL (a folder or a Hub id), --endpoint with the address of a server, or --compare "
            "with evaluations"
        )
    if model and endpoint:
        raise ValueError(f"give either the model {model} or --endpoint {endpoint}, not both")
    with quietly(quiet):
        request.check()
        from tyler.evaluation import command

        if model:
            logger.info("loading %s ...", model)
        command.run(model, request, output=output)


def grade(
    folder: Annotated[Positional[Path], arg(metavar="DIR", help_behavior_hint="")],
    grading: Annotated[GradeOptions, arg(name="")] = DEFAULT.grading,
) -> None:
    """Grade the kept answers of an evaluation again, without decoding, and say which verdicts changed and why.

    The verdicts become a file of their own, named by the grader's version and mode; earlier ones stay.

    Args:
        folder: The directory of an evaluation, or of the answers of experiments.
    """
    from tyler.evaluation import regrade

    regrade.run(folder, grading)
