"""Is it right on a GPU? Tiny models of every family against the CPU, then both stages of `mini` from end to end.

In float32 the GPU must decide what the paper's transcription decides on the CPU, and find the losses and gradients of
its sums. In bfloat16 both round: the GPU may be off from exact sums (float32 on the same rounded weights) at most twice
as far as a CPU in bfloat16 is.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import test_stage2 as papers_stage2
import test_teacher_forcing as papers_stage1
import torch
from tests import asking, tiny
from torch import Tensor

from gpu.steps import Check, Finding, Setup, Step, Unfinished, progress, stopped_in_time
from tyler.config.files import load_config
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.runs.json_lines import read_jsonl
from tyler.runs.signals import Interrupted
from tyler.training import stage1, stage2, verdicts
from tyler.training.replay import replay_logprobs

LOW = torch.bfloat16
ROUNDED, EXACT = (LOW,), (LOW, torch.float32)
"""Weights in bfloat16, and the same numbers in float32."""
TIMES = 2.0
"""How much farther off than a CPU in bfloat16 a GPU in bfloat16 may be."""
FLOORS = {"log-probabilities": 2e-3, "gradients": 5e-3}
"""What is allowed in bfloat16 where the CPU happens to be exact."""
GRADIENT = 5e-3
"""Of a gradient's norm, in float32."""
MINI = {"float32": 0.9, "bfloat16": 0.85}
"""The share of development problems that `mini` has to solve at the end of Stage 2; on a CPU it is 0.95 and more."""

LITTLE = (
    *("data.count=8", "data.development=null", "data.held_out=[]", "evaluation.count=8", "stage1.eval_every=null"),
    *("stage1.steps=2", "stage1.batch_size=2", "stage2.steps=1", "stage2.batch_size=1", "stage2.max_new_tokens=16"),
    *("stage2.eval_every=null", "stage2.calibration.num_problems=2", "grpo.group_size=2"),
)
"""What a rehearsal trains."""

Gradients = Mapping[str, Tensor]


def steps(setup: Setup) -> list[Step]:
    """Every family in float32, then in bfloat16, then `mini`."""
    families = tiny.FAMILIES[:1] if setup.rehearse else tiny.FAMILIES
    return [
        *(Step(f"{family}, float32", functools.partial(in_float32, family), 10) for family in families),
        *(Step(f"{family}, bfloat16", functools.partial(in_bfloat16, family), 10) for family in families),
        *(Step(f"mini, {dtype}", functools.partial(mini, dtype), 60) for dtype in MINI),
    ]


def in_float32(family: str, setup: Setup) -> Iterator[Finding]:
    """Decoding, replay, and a step of both stages, against the transcription on the CPU."""
    model = tiny.build(family, tiny.SEEDS[family], device=setup.device)
    cases = list(asking.CASES)[: 6 if setup.rehearse else None]
    trajectories = asking.run(model, [asking.CASES[case] for case in cases], slots=5)
    others = [
        f"{case}: {'; '.join(faults)}"
        for case, trajectory in zip(cases, trajectories, strict=True)
        if (faults := asking.differences(trajectory, asking.expected(family, case)))
    ]
    if others:
        raise AssertionError("\n".join(others))
    yield Check(f"answers of {len(cases)} that differ from the transcription's", len(others), 0)
    yield Check("replayed against sampled log-probabilities", max(replay_gaps(model, trajectories)), asking.TOLERANCE)
    logprobs, gradients = first_stage(model)
    exact, exact_gradients = first_stage_by_sums(family, ())
    yield Check("Stage 1: log-probabilities", float((logprobs - exact).abs().max()), asking.TOLERANCE)
    yield Check("Stage 1: gradients", distance(gradients, exact_gradients), GRADIENT)
    with papers_verifier():
        moved, rollout, reference = papers_stage2.moved_policy(family, setup.device)
        _, gradients = papers_stage2.learned(moved, rollout, reference, papers_stage2.CONFIG)
        yield Check("Stage 2: gradients", distance(gradients, second_stage_by_sums(family, (), rollout)), GRADIENT)


def in_bfloat16(family: str, setup: Setup) -> Iterator[Finding]:
    """The same with weights in bfloat16: how far off the GPU is, and how far a CPU."""
    devices = setup.device, "cpu"
    there, here = (tiny.build(family, tiny.SEEDS[family], device=device, dtypes=ROUNDED) for device in devices)
    requests = [
        request for request in asking.CASES.values() if request.sampling == Sampling(1.0, seed=request.sampling.seed)
    ]
    gaps = [fmean(replay_gaps(model, asking.run(model, requests))) for model in (there, here)]
    yield near("replayed against sampled log-probabilities", *gaps, FLOORS["log-probabilities"])
    (logprobs, gradients), (of_cpu, gradients_of_cpu) = first_stage(there), first_stage(here)
    exact, exact_gradients = first_stage_by_sums(family, EXACT)
    offs = [float((logs - exact).abs().mean()) for logs in (logprobs, of_cpu)]
    yield near("Stage 1: log-probabilities", *offs, FLOORS["log-probabilities"])
    offs = [distance(both, exact_gradients) for both in (gradients, gradients_of_cpu)]
    yield near("Stage 1: gradients", *offs, FLOORS["gradients"])
    with papers_verifier():
        _, rollout, reference = papers_stage2.moved_policy(family, dtypes=EXACT)
        exact_gradients = second_stage_by_sums(family, EXACT, rollout)
        offs = [second_stage_off(family, device, rollout, reference, exact_gradients) for device in devices]
        yield near("Stage 2: gradients", *offs, FLOORS["gradients"])


def near(of: str, there: float, here: float, floor: float) -> Check:
    """That something is off at most TIMES as far as on a CPU in bfloat16."""
    return Check(f"{of} (a CPU: {here:.2g})", there, TIMES * here + floor)


def replay_gaps(model: Tyler, trajectories: Sequence[Trajectory]) -> list[float]:
    """How far each drawn action's replayed log-probability is from the sampled one, of answers drawn at temperature 1.

    Replay is the learner's view of an answer, with the latents that were stored.
    """
    drawn_at_1 = [answer for answer in trajectories if answer.sampling == Sampling(1.0, seed=answer.sampling.seed)]
    with torch.no_grad():
        replayed, _ = replay_logprobs(model.backbone, model.policy.decoder, model.policy.psi, drawn_at_1)
    return [
        abs(float(replayed[row, index]) - answer.logprobs[index])
        for row, answer in enumerate(drawn_at_1)
        for index, drawn in enumerate(answer.drawn())
        if drawn
    ]


def first_stage(model: Tyler) -> tuple[Tensor, Gradients]:
    """Log-probabilities of Stage 1's targets, and the gradients of their sum, as training computes them."""
    logprobs, mask = papers_stage1.logprobs_of(model, papers_stage1.RAGGED)
    wanted = torch.cat([row[there] for row, there in zip(logprobs, mask, strict=True)])
    return wanted.detach().float().cpu(), papers_stage1.gradients(model, wanted.sum())


@functools.cache
def first_stage_by_sums(family: str, dtypes: tuple[torch.dtype, ...]) -> tuple[Tensor, Gradients]:
    """The same by full passes on the CPU."""
    model = tiny.build(family, tiny.SEEDS[family], dtypes=dtypes)
    wanted = torch.cat([papers_stage1.full_logprobs(model, example) for example in papers_stage1.RAGGED])
    return wanted.detach(), papers_stage1.gradients(model, wanted.sum())


def second_stage_by_sums(family: str, dtypes: tuple[torch.dtype, ...], rollout: stage2.Rollout) -> Gradients:
    """The gradients of Stage 2's loss on a rollout, by the paper's sums on the CPU."""
    model, _, reference = papers_stage2.moved_policy(family, dtypes=dtypes)
    for trajectory in rollout.trajectories:
        trajectory.latents = [latents.cpu() for latents in trajectory.latents]
    named = papers_stage2.trainable(model)
    loss = papers_stage2.slow_loss(model, reference, rollout, papers_stage2.CONFIG)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def second_stage_off(family: str, device: str, rollout: stage2.Rollout, reference: Tensor, exact: Gradients) -> float:
    """How far the gradients of Stage 2 in bfloat16 are from exact ones on the same rollout."""
    model, _, _ = papers_stage2.moved_policy(family, device, ROUNDED)
    afresh = replace(rollout, start=rollout.start.to(device), reference=rollout.reference.to(device))  # type: ignore[union-attr]
    _, gradients = papers_stage2.learned(model, afresh, reference.to(device), papers_stage2.CONFIG)
    return distance(gradients, exact)


def distance(gradients: Gradients, exact: Gradients) -> float:
    """The largest difference of a gradient from the exact one, as a share of that one's norm."""
    return max(float((gradients[name].float().cpu() - right).norm() / right.norm()) for name, right in exact.items())


def papers_verifier() -> AbstractContextManager[object]:
    """While inside, random models are right about every other time, as in the tests of Stage 2."""
    return patch.object(verdicts, "grade", papers_stage2.verdict)


def mini(dtype: str, setup: Setup) -> Iterator[Finding]:
    """Both stages of the shipped model as its preset has them; goes on where an earlier call was stopped."""
    settings = [f"backbone.dtype={dtype}", f"devices.device={setup.device}", *(LITTLE if setup.rehearse else ())]
    config = load_config("mini", settings)
    first, second = (setup.work / "runs" / f"mini-{stage}-{dtype}" for stage in ("stage1", "stage2"))
    try:
        with stopped_in_time(setup.seconds_left - 10):
            stage1.run(config, output=first, resume=first.exists())
            stage2.run(config, start=first, output=second, resume=second.exists())
    except Interrupted as stopped:
        raise Unfinished([*progress(first, "stage1", "Stage 1"), *progress(second, "stage2", "Stage 2")]) from stopped
    yield from progress(first, "stage1", "Stage 1")
    yield from progress(second, "stage2", "Stage 2")
    if not setup.rehearse:
        solved = last(second, "greedy/accuracy")
        yield Check("development problems that are not solved", 1 - solved, 1 - MINI[dtype])


def last(run: Path, metric: str) -> float:
    """The last value of a metric."""
    return [record[metric] for record in read_jsonl(run / "metrics.jsonl") if metric in record][-1]
