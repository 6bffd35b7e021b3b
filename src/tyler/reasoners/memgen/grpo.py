"""The weaver, or the trigger, learns from rewards: GRPO without a KL term, on groups rolled out by the engine.

Weaver: the tokens are sampled and learned, and gradients reach the weaver through its latents, which replay computes
anew. Trigger: its decisions are sampled and learned, the weaver is frozen, and nothing else is in the loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tyler.config.loops import MemGenGrpoConfig, MemGenTriggerConfig
from tyler.config.schema import Config
from tyler.config.sections import DecodingConfig
from tyler.engine.native.engine import longest_prompt
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.trajectory import Trajectory
from tyler.modeling.lora import LoraSettings
from tyler.reasoners.memgen.model import MemGen, MemGenReasoner, num_insertions
from tyler.reasoners.memgen.sft import load_start, replayed_logprobs
from tyler.reasoners.memgen.trigger import YES, Consultation
from tyler.runs.run import Run
from tyler.tasks.problem import Problem
from tyler.training import distributed, grpo
from tyler.training.command import Prepared, origin_of, training_command
from tyler.training.gradient_checkpointing import recomputing
from tyler.training.micro_batches import MicroBatches
from tyler.training.objectives import clipped_actions, clipped_surrogate, importance_ratio, trajectory_weights
from tyler.training.rewards import degenerate_groups, group_advantages
from tyler.training.teacher_forcing import Example, Insertion

GREEDY_ACCURACY = "memgen_grpo/greedy_accuracy"


@dataclass(frozen=True)
class Rollout(grpo.Rollout):
    """Groups of answers, with what the trigger said in each."""

    consultations: list[list[Consultation]]


@dataclass(frozen=True)
class Learner:
    """What is learned: a name, parameters, the temperatures of rollouts, and what is replayed."""

    name: str
    parameters: list[nn.Parameter]
    token_temperature: float
    trigger_temperature: float
    recorded: Callable[[Rollout], list[list[float]]]
    """Log-probabilities of the learned actions, as sampled."""
    replay: Callable[[MemGen, Rollout, Sequence[int], float, bool], Float[Tensor, "batch actions"]]
    """The same under the present weights, with gradients; what it holds after a row's actions is ignored.

    Its last arguments are the places of the answers, the temperature, and whether activations are computed again
    in the backward pass.
    """


def roll_out(
    model: MemGen,
    problems: Sequence[Problem],
    config: MemGenGrpoConfig,
    learner: Learner,
    decoding: DecodingConfig,
    step: int,
    repeats: Sequence[int] = (),
) -> Rollout:
    """Answer every problem `group_size` times and grade the answers: a reward of 1 for a correct one, else 0."""
    started = time.perf_counter()
    asked = grpo.groups_of(problems, config.group_size, repeats)
    requests = [
        model.request(
            problem,
            sampling=Sampling(learner.token_temperature, seed=seed_of(config.seed, step, problem.id, member)),
            max_new_tokens=config.max_new_tokens,
            trigger_temperature=learner.trigger_temperature,
        )
        for problem, member in asked
    ]
    engine = model.engine(slots=min(decoding.slots, len(requests)), memory=decoding.memory)
    trajectories = engine.run(requests)
    verdicts = grpo.graded([problem for problem, _ in asked], trajectories)
    success = torch.tensor([verdict.correct for verdict in verdicts]).view(-1, config.group_size)
    consultations = [engine.consultations[index] for index in range(len(requests))]
    seconds = {"rollout": time.perf_counter() - started}
    return Rollout(list(problems), trajectories, verdicts, success.float(), success, seconds, consultations)


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


def learn(model: MemGen, rollout: Rollout, config: MemGenGrpoConfig, learner: Learner) -> dict[str, float]:
    """Accumulate the gradient of L_GRPO over micro-batches of answers; every answer of the batch weighs the same.

    A rollout is this process's share of a batch; the terms are those of the whole batch, the gradient the share's part.
    """
    device = model.backbone.device
    advantages = group_advantages(rollout.rewards, config.advantage_epsilon).flatten().to(device)
    recorded, mask = padded(learner.recorded(rollout), device)
    groups = torch.arange(len(rollout.problems), device=device).repeat_interleave(config.group_size)
    weights = distributed.part_of(len(rollout.problems)) * trajectory_weights(mask, groups)

    def part_terms(places: list[int]) -> dict[str, Tensor]:
        rows = torch.tensor(places, device=device)
        length = int(mask[rows].sum(dim=1).max())
        if length == 0:
            return {}  # nothing was decided here
        real, old = mask[rows, :length], recorded[rows, :length]
        found = learner.replay(model, rollout, places, config.temperature, config.gradient_checkpointing)
        logprobs = found[:, :length]
        loss, clipped = grpo_terms(logprobs, old, advantages[rows], weights[rows, :length], config.clip_range)
        gap = (logprobs.detach() - old)[real].abs().max()
        return {"loss": loss, "clip_share": clipped, grpo.REPLAY_GAP: gap}

    names = ("loss", "clip_share", grpo.REPLAY_GAP)
    pieces = MicroBatches.of(config, model.backbone)
    return grpo.accumulate_gradients(rollout.trajectories, pieces, names, part_terms)


def spec(model: MemGen, config: MemGenGrpoConfig, learner: Learner, decoding: DecodingConfig) -> grpo.GrpoSpec[Rollout]:
    """What MemGen brings to the loop of GRPO: the weaver or the trigger learns, and LoRA dropout is off."""
    return grpo.GrpoSpec(
        title=f"MemGen {learner.name} GRPO",
        metrics="memgen_grpo",
        loop=config,
        updates_per_rollout=config.updates_per_rollout,
        parameters=[(learner.parameters, config.learning_rate)],
        model=model,
        roll_out=lambda batch, repeats, step: roll_out(model, batch, config, learner, decoding, step, repeats),
        describe=rollout_metrics,
        learn=lambda rollout: learn(model, rollout, config, learner),
        greedy=lambda development: greedy_metrics(model, development, config, decoding),
        best=GREEDY_ACCURACY,
    )


def train(
    model: MemGen,
    problems: Sequence[Problem],
    config: MemGenGrpoConfig,
    learner: Learner,
    decoding: DecodingConfig,
    run: Run,
    development: Sequence[Problem] = (),
) -> None:
    """Train what `learner` names in place, logging and checkpointing into `run`; resumes where `run` stands."""
    grpo.train(spec(model, config, learner, decoding), problems, development, run)


def greedy_metrics(
    model: MemGen, development: Sequence[Problem], config: MemGenGrpoConfig, decoding: DecodingConfig
) -> dict[str, float]:
    """Greedy accuracy and blocks after delimiters on development problems."""

    def answer(problems: Sequence[Problem]) -> list[Trajectory]:
        longest, slots, memory = config.max_new_tokens, decoding.slots, decoding.memory
        answers = MemGenReasoner("greedy", model, max_new_tokens=longest, slots=slots, memory=memory).solve(problems)
        model.shared_engine.release()  # the learner, whose turn is next, needs its memory
        return list(answers)

    def describe(answers: Sequence[Trajectory]) -> dict[str, float]:
        return {"memgen_grpo/greedy_insertions": sum(map(num_insertions, answers)) / len(answers)}

    return grpo.greedy_metrics(development, answer, GREEDY_ACCURACY, describe)


def rollout_metrics(rollout: Rollout) -> dict[str, float]:
    """Means over the answers of a step, and over what the trigger said in them."""
    answers = rollout.trajectories
    decisions = [one.decision for consulted in rollout.consultations for one in consulted]
    means = {
        "memgen_grpo/reward": float(rollout.rewards.mean()),
        "memgen_grpo/gold_errors": grpo.gold_errors(rollout.verdicts),
        "memgen_grpo/degenerate_groups": float(degenerate_groups(rollout.rewards).float().mean()),
        "memgen_grpo/visible_tokens": sum(answer.num_visible for answer in answers) / len(answers),
        "memgen_grpo/latents": sum(answer.num_latents for answer in answers) / len(answers),
        "memgen_grpo/insertions": sum(num_insertions(answer) for answer in answers) / len(answers),
        "memgen_grpo/consultations": len(decisions) / len(answers),
        "memgen_grpo/rollout_seconds": rollout.seconds["rollout"],
    }
    said = [decision for part in distributed.gather(decisions) for decision in part]
    agreed = sum(decision == YES for decision in said) / max(1, len(said))
    return distributed.average(means, len(answers)) | {"memgen_grpo/agreed": agreed}


# --- the commands ---------------------------------------------------------------------------------------------------


def weaver_learner(model: MemGen, config: MemGenGrpoConfig) -> Learner:
    """GRPO of the weaver."""
    return Learner("weaver", model.weaver.trainable(), config.temperature, 0.0, token_logprobs, replay_tokens)


def trigger_learner(model: MemGen, config: MemGenTriggerConfig) -> Learner:
    """GRPO of the trigger. Raises ValueError for a model without one."""
    if model.trigger is None:
        raise ValueError("this MemGen has no trigger; add one with `with_new_trigger`")
    temperatures = config.token_temperature, config.temperature
    return Learner("trigger", model.trigger.trainable(), *temperatures, decision_logprobs, replay_decisions)


@training_command
def run_weaver(config: Config, *, start: Path | str) -> Prepared[MemGen]:
    """`tyler train memgen-weaver-grpo`: the weaver of a MemGen learns.

    Raises ValueError for one that has a trigger, and for one of other settings than the config's.
    """
    settings = config.memgen.weaver_grpo
    model = load_start(config, start)
    if model.trigger is not None:
        raise ValueError(f"{start} has a trigger, which is trained last; start from a weaver (`tyler train memgen`)")
    torch.manual_seed(settings.seed)
    return _prepared(model, model.fingerprint(), config, settings, weaver_learner(model, settings))


@training_command
def run_trigger(config: Config, *, start: Path | str) -> Prepared[MemGen]:
    """`tyler train memgen-trigger`: the trigger of a MemGen learns, a new one where it has none.

    Raises ValueError for a MemGen of other settings than the config's.
    """
    settings = config.memgen.trigger
    model = load_start(config, start)
    origin = model.fingerprint()
    torch.manual_seed(settings.seed)
    if model.trigger is None:
        model = model.with_new_trigger(LoraSettings(**config.memgen.lora.model_dump()))
    return _prepared(model, origin, config, settings, trigger_learner(model, settings))


def _prepared(
    model: MemGen, start: str, config: Config, settings: MemGenGrpoConfig, learner: Learner
) -> Prepared[MemGen]:
    room = longest_prompt(model.backbone, model.weaver.mapping())
    problems, development = grpo.load_askable(config, settings, model.request, room)
    origin = origin_of(start, map(Problem.content, problems)) | model.backbone.text_origin()
    loop = partial(train, model, problems, settings, learner, config.decoding, development=development)
    return Prepared(model, origin, loop)
