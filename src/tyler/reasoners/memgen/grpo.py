"""The weaver, or the trigger, learns from rewards: GRPO without a KL term, on groups rolled out by the engine.

Weaver: the tokens are sampled and learned, and gradients reach the weaver through its latents, which replay computes
anew. Trigger: its decisions are sampled and learned, the weaver is frozen, and nothing else is in the loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import gt
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tyler.config.loops import MemGenGrpoConfig, MemGenTriggerConfig
from tyler.config.schema import Config
from tyler.config.sections import DecodingConfig
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.trajectory import Trajectory
from tyler.modeling.lora import LoraSettings
from tyler.reasoners.memgen.model import MemGen, MemGenReasoner, num_insertions
from tyler.reasoners.memgen.sft import replayed_logprobs
from tyler.reasoners.memgen.trigger import YES, Consultation
from tyler.runs.run import Run
from tyler.runs.trackers import check_tracker
from tyler.tasks import grade
from tyler.tasks.decontamination import load_training
from tyler.tasks.problem import Problem
from tyler.training import distributed
from tyler.training.gradient_checkpointing import recomputing
from tyler.training.loop import batch_at, check_finite, development_problems, opened_run, origin_of, remaining_steps
from tyler.training.micro_batches import MicroBatches
from tyler.training.objectives import clipped_actions, clipped_surrogate, importance_ratio, trajectory_weights
from tyler.training.optimizer import Optimization
from tyler.training.rewards import degenerate_groups, group_advantages
from tyler.training.teacher_forcing import Example, Insertion


@dataclass(frozen=True)
class Rollout:
    """The groups of one step, flat: `group_size` answers per problem, what the trigger said in each, and rewards."""

    problems: list[Problem]
    trajectories: list[Trajectory]
    consultations: list[list[Consultation]]
    rewards: Float[Tensor, "batch group"]
    seconds: float


@dataclass(frozen=True)
class GrpoSpec:
    """What one kind of GRPO trains: its name, parameters, temperature of the tokens, and what it replays."""

    name: str
    parameters: list[nn.Parameter]
    token_temperature: float
    recorded: Callable[[Rollout], list[list[float]]]
    """Log-probabilities of the learned actions, as sampled."""
    replay: Callable[[MemGen, Rollout, Sequence[int], float, bool], Float[Tensor, "batch actions"]]
    """The same under the present weights, with gradients; what it holds behind a row's actions is ignored.

    Its last arguments are the places of the answers, the temperature, and whether activations are computed again
    in the backward pass.
    """


def roll_out(
    model: MemGen,
    problems: Sequence[Problem],
    config: MemGenGrpoConfig,
    spec: GrpoSpec,
    decoding: DecodingConfig,
    step: int,
) -> Rollout:
    """Answer every problem `group_size` times and grade the answers: a reward of 1 for a correct one, else 0."""
    started = time.perf_counter()
    asked = [(problem, member) for problem in problems for member in range(config.group_size)]
    requests = [
        model.request(
            problem,
            sampling=Sampling(spec.token_temperature, seed=seed_of(config.seed, step, problem.id, member)),
            max_new_tokens=config.max_new_tokens,
            trigger_temperature=config.temperature if spec.name == "trigger" else 0.0,
        )
        for problem, member in asked
    ]
    engine = model.engine(slots=min(decoding.slots, len(requests)), memory=decoding.memory)
    trajectories = engine.run(requests)
    correct = [is_correct(problem, answer) for (problem, _), answer in zip(asked, trajectories, strict=True)]
    rewards = torch.tensor(correct, dtype=torch.float32).view(-1, config.group_size)
    consultations = [engine.consultations[index] for index in range(len(requests))]
    return Rollout(list(problems), trajectories, consultations, rewards, time.perf_counter() - started)


def is_correct(problem: Problem, answer: Trajectory) -> bool:
    """What the verifier says."""
    return grade(problem.task, answer.text, problem.answer, truncated=answer.truncated).correct


# --- the weaver: sampled tokens, around latents that are computed anew ----------------------------------------------


def visible_actions(trajectory: Trajectory) -> list[int]:
    """The sampled tokens, with the one that ends the answer."""
    pairs = zip(trajectory.actions, trajectory.is_operator, strict=True)
    return [action for action, is_operator in pairs if not is_operator]


def example_of(trajectory: Trajectory) -> Example:
    """A trajectory as a trace with blocks where they were; one that nothing follows has no effect and is left out."""
    targets = visible_actions(trajectory)
    blocks = [Insertion(one.position, one.operator) for one in trajectory.invocations if one.position < len(targets)]
    return Example(trajectory.prompt_ids, targets, tuple(blocks))


def token_logprobs(rollout: Rollout) -> list[list[float]]:
    """log p of every sampled token."""
    return [
        [value for value, is_operator in zip(one.logprobs, one.is_operator, strict=True) if not is_operator]
        for one in rollout.trajectories
    ]


def replay_tokens(
    model: MemGen, rollout: Rollout, places: Sequence[int], temperature: float, gradient_checkpointing: bool = False
) -> Float[Tensor, "batch actions"]:
    """log p of every sampled token, with gradients to the weaver. An answer may have no token where room ran out."""
    examples = [example_of(rollout.trajectories[place]) for place in places]
    kept = [row for row, example in enumerate(examples) if example.target_ids]
    found, _ = replayed_logprobs(model, [examples[row] for row in kept], temperature, gradient_checkpointing)
    logprobs = found.new_zeros(len(examples), found.shape[1])
    return logprobs.index_copy(0, torch.tensor(kept, device=found.device), found)


# --- the trigger: sampled decisions, from the visible tokens --------------------------------------------------------


def decision_logprobs(rollout: Rollout) -> list[list[float]]:
    """log p of every decision."""
    return [[one.logprob for one in consulted] for consulted in rollout.consultations]


def replay_decisions(
    model: MemGen, rollout: Rollout, places: Sequence[int], temperature: float, gradient_checkpointing: bool = False
) -> Float[Tensor, "batch actions"]:
    """log p of every decision, in one causal pass over prompts and visible tokens."""
    assert model.trigger is not None
    device = model.backbone.device
    trajectories = [rollout.trajectories[place] for place in places]
    consultations = [rollout.consultations[place] for place in places]
    ids = [torch.tensor([*one.prompt_ids, *visible_actions(one)], device=device) for one in trajectories]
    decoder = recomputing(model.trigger.training_decoder, gradient_checkpointing)
    embeds = model.backbone.embed(pad_sequence(ids, batch_first=True))
    hidden = decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state  # padding on the right needs no mask
    logprobs = []
    for row, (trajectory, consulted) in enumerate(zip(trajectories, consultations, strict=True)):
        asked_at = [len(trajectory.prompt_ids) + one.position - 1 for one in consulted]
        decisions = torch.tensor([one.decision for one in consulted], dtype=torch.long, device=device)
        logits = model.trigger.logits(hidden[row, asked_at]) / temperature
        logprobs.append(logits.log_softmax(dim=-1).gather(-1, decisions[:, None]).squeeze(-1))
    return pad_sequence(logprobs, batch_first=True)


# --- one update -----------------------------------------------------------------------------------------------------


def padded(rows: list[list[float]], device: torch.device) -> tuple[Float[Tensor, "batch actions"], Bool[Tensor, "b a"]]:
    """Ragged rows as a right-padded tensor, and the mask of what is real."""
    values = pad_sequence([torch.tensor(row, dtype=torch.float32) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    return values.to(device), (torch.arange(values.shape[1]) < lengths).to(device)


def grpo_terms(
    logprobs: Float[Tensor, "batch actions"],
    old_logprobs: Float[Tensor, "batch actions"],
    advantages: Float[Tensor, " batch"],
    weights: Float[Tensor, "batch actions"],
    clip_range: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """L_GRPO with beta 0, and the share of actions where the clip binds; `weights` are 0 where there is no action."""
    real = weights > 0
    ratio = importance_ratio(torch.where(real, logprobs, 0), torch.where(real, old_logprobs, 0))
    loss = -(weights * clipped_surrogate(ratio, advantages, clip_range)).sum()
    return loss, (weights * clipped_actions(ratio.detach(), advantages, clip_range)).sum()


def learn(model: MemGen, rollout: Rollout, config: MemGenGrpoConfig, spec: GrpoSpec) -> dict[str, float]:
    """Accumulate the gradient of L_GRPO over micro-batches of answers; every answer of the batch weighs the same.

    A rollout is this process's share of a batch; the terms are those of the whole batch, the gradient the share's part.
    """
    device = model.backbone.device
    advantages = group_advantages(rollout.rewards, config.advantage_epsilon).flatten().to(device)
    recorded, mask = padded(spec.recorded(rollout), device)
    groups = torch.arange(len(rollout.problems), device=device).repeat_interleave(config.group_size)
    weights = distributed.part_of(len(rollout.problems)) * trajectory_weights(mask, groups)
    totals = {"loss": 0.0, "clip_share": 0.0, "replay_gap": 0.0}
    lengths = [len(one.prompt_ids) + one.num_visible + one.num_latents for one in rollout.trajectories]
    for places in MicroBatches.of(config, model.backbone).cut(lengths):
        rows = torch.tensor(places, device=device)
        length = int(mask[rows].sum(dim=1).max())
        if length == 0:
            continue  # nothing was decided here
        real, old = mask[rows, :length], recorded[rows, :length]
        found = spec.replay(model, rollout, places, config.temperature, config.gradient_checkpointing)
        logprobs = found[:, :length]
        loss, clipped = grpo_terms(logprobs, old, advantages[rows], weights[rows, :length], config.clip_range)
        loss.backward()
        totals["loss"] += float(loss.detach())
        totals["clip_share"] += float(clipped)
        totals["replay_gap"] = max(totals["replay_gap"], float((logprobs.detach() - old)[real].abs().max()))
    return distributed.add_up(totals, largest="replay_gap")


def train(
    model: MemGen,
    problems: Sequence[Problem],
    config: MemGenGrpoConfig,
    spec: GrpoSpec,
    decoding: DecodingConfig,
    run: Run,
    development: Sequence[Problem] = (),
) -> None:
    """Train what `spec` names in place, logging and checkpointing into `run`; resumes where `run` stands.

    Every `eval_every` steps `development` is answered greedily, and its accuracy chooses the best checkpoint.
    """
    total, updates = config.num_steps(len(problems)), config.updates_per_rollout
    optimization = Optimization.of(config, [(spec.parameters, config.learning_rate)], total * updates)
    title = f"MemGen {spec.name} GRPO"
    # No LoRA dropout: replay must be the rollout's distribution.
    for step in remaining_steps(title, run, total, optimization, config.checkpoint_every, model):
        batch = [problems[index] for _, index in batch_at(step.number, config.batch_size, len(problems), config.seed)]
        ids = [problem.id for problem in batch]
        rollout = roll_out(model, distributed.share(batch), config, spec, decoding, step.number)
        metrics = rollout_metrics(rollout)
        started = time.perf_counter()
        for update in range(updates):
            terms = learn(model, rollout, config, spec)
            check_finite(terms["loss"], step.number, ids)
            if not any(distributed.gather(has_gradient(spec))):
                continue  # the trigger was never asked
            norm, rate = optimization.step(step.number * updates + update, ids)
            metrics |= {"memgen_grpo/gradient_norm": norm, "memgen_grpo/learning_rate": rate}
            metrics |= {f"memgen_grpo/{name}": value for name, value in terms.items()}
        metrics["memgen_grpo/learning_seconds"] = time.perf_counter() - started
        if development and step.is_due(config.eval_every):
            metrics |= greedy_metrics(model, development, config, decoding)
            step.record_best(metrics, "memgen_grpo/greedy_accuracy", gt)
        step.log(metrics, f"reward {metrics['memgen_grpo/reward']:.2f}")


def has_gradient(spec: GrpoSpec) -> bool:
    """Whether this process's share of the batch had anything to learn from."""
    return any(parameter.grad is not None for parameter in spec.parameters)


def greedy_metrics(
    model: MemGen, development: Sequence[Problem], config: MemGenGrpoConfig, decoding: DecodingConfig
) -> dict[str, float]:
    """Greedy accuracy and blocks behind delimiters on development problems."""
    if not (mine := distributed.share(development)):
        return distributed.average({}, 0)
    longest, slots, memory = config.max_new_tokens, decoding.slots, decoding.memory
    answers = MemGenReasoner("greedy", model, max_new_tokens=longest, slots=slots, memory=memory).solve(mine)
    model.shared_engine.release()  # the learner, whose turn is next, needs its memory
    correct = [is_correct(problem, answer) for problem, answer in zip(mine, answers, strict=True)]
    metrics = {
        "memgen_grpo/greedy_accuracy": sum(correct) / len(correct),
        "memgen_grpo/greedy_insertions": sum(map(num_insertions, answers)) / len(answers),
    }
    return distributed.average(metrics, len(mine))


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Means over the answers of a step, and over what the trigger said in them."""
    answers = rollout.trajectories
    decisions = [one.decision for consulted in rollout.consultations for one in consulted]
    means = {
        "memgen_grpo/reward": float(rollout.rewards.mean()),
        "memgen_grpo/degenerate_groups": float(degenerate_groups(rollout.rewards).float().mean()),
        "memgen_grpo/visible_tokens": sum(answer.num_visible for answer in answers) / len(answers),
        "memgen_grpo/latents": sum(answer.num_latents for answer in answers) / len(answers),
        "memgen_grpo/insertions": sum(num_insertions(answer) for answer in answers) / len(answers),
        "memgen_grpo/consultations": len(decisions) / len(answers),
        "memgen_grpo/rollout_seconds": rollout.seconds,
    }
    said = [decision for part in distributed.gather(decisions) for decision in part]
    agreed = sum(decision == YES for decision in said) / max(1, len(said))
    return distributed.average(means, len(answers)) | {"memgen_grpo/agreed": agreed}


# --- the commands ---------------------------------------------------------------------------------------------------


def weaver_learner(model: MemGen, config: MemGenGrpoConfig) -> GrpoSpec:
    """GRPO of the weaver."""
    return GrpoSpec("weaver", model.weaver.trainable(), config.temperature, token_logprobs, replay_tokens)


def trigger_learner(model: MemGen, config: MemGenTriggerConfig) -> GrpoSpec:
    """GRPO of the trigger. Raises ValueError for a model without one."""
    if model.trigger is None:
        raise ValueError("this MemGen has no trigger; add one with `with_new_trigger`")
    return GrpoSpec("trigger", model.trigger.trainable(), config.token_temperature, decision_logprobs, replay_decisions)


@distributed.on_all_devices
def run_weaver(
    config: Config, *, start: Path | str, output: Path, resume: bool = False, replace: bool = False
) -> MemGen:
    """`tyler train memgen-weaver-grpo`: load a MemGen, train its weaver by GRPO, save. Returns the trained model."""
    check_tracker(config.tracking)
    settings = config.memgen.weaver_grpo
    model = MemGen.from_pretrained(str(start), dtype=config.backbone.dtype)
    if model.trigger is not None:
        raise ValueError(f"{start} has a trigger, which is trained last; start from a weaver (`tyler train memgen`)")
    torch.manual_seed(settings.seed)
    return _run(model, model.fingerprint(), config, settings, weaver_learner(model, settings), output, resume, replace)


@distributed.on_all_devices
def run_trigger(
    config: Config, *, start: Path | str, output: Path, resume: bool = False, replace: bool = False
) -> MemGen:
    """`tyler train memgen-trigger`: load a MemGen, train its trigger (a new one where it has none) by GRPO, save."""
    check_tracker(config.tracking)
    settings = config.memgen.trigger
    model = MemGen.from_pretrained(str(start), dtype=config.backbone.dtype)
    origin = model.fingerprint()
    torch.manual_seed(settings.seed)
    if model.trigger is None:
        model = model.with_new_trigger(LoraSettings(**config.memgen.lora.model_dump()))
    return _run(model, origin, config, settings, trigger_learner(model, settings), output, resume, replace)


def _run(
    model: MemGen,
    start: str,
    config: Config,
    settings: MemGenGrpoConfig,
    spec: GrpoSpec,
    output: Path,
    resume: bool,
    replace: bool,
) -> MemGen:
    problems = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    development = development_problems(config, settings)
    origin = origin_of(start, map(Problem.content, problems))
    with opened_run(config, output, resume=resume, replace=replace, origin=origin) as directory:
        train(model, problems, settings, spec, config.decoding, directory, development)
    return model
