"""The weaver, or the trigger, learns from rewards: GRPO without a KL term, on groups rolled out by the engine.

Weaver: the tokens are sampled and learned, and gradients reach the weaver through its latents, which replay computes
anew. Trigger: its decisions are sampled and learned, the weaver is frozen, and nothing else is in the loss.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from tyler.config.schema import Config
from tyler.config.sections import DecodingConfig
from tyler.engine.request import Request
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.reasoners.memgen.model import MemGen, num_insertions
from tyler.reasoners.memgen.settings import MemGenConfig, MemGenGrpoConfig, MemGenTriggerConfig
from tyler.reasoners.memgen.sft import load_start, new_weaver, replayed_logprobs, trained_weaver
from tyler.reasoners.memgen.weaver import YES, Consultation
from tyler.runs.metrics import GREEDY, Metrics, from_rewards
from tyler.tasks.problem import Problem
from tyler.training import distributed
from tyler.training.command import Prepared, load_problems_that_fit, origin_of, training_command
from tyler.training.grpo import Actions, GrpoTrainer
from tyler.training.packing import read_packed
from tyler.training.policy_losses import AnchoredLoss
from tyler.training.replay import padded
from tyler.training.rewards import Rewards, origins, with_sources
from tyler.training.rollouts import NativeRollouts, Rollout
from tyler.training.teacher_forcing import Insertion, Trace, embed_ids


class MemGenRollouts(NativeRollouts):
    """The engine of a MemGen, which keeps what the trigger said in the answers of a step."""

    def __init__(self, model: MemGen, decoding: DecodingConfig) -> None:
        super().__init__(model.shared_engine, decoding)
        self.model = model
        self._consultations: dict[int, tuple[Trajectory, list[Consultation]]] = {}

    def update(self, version: int) -> None:
        super().update(version)
        self._consultations.clear()

    def answer(self, requests: Sequence[Request]) -> list[Trajectory]:
        if self.model.trigger is None:
            return super().answer(requests)
        engine = self.model.engine(slots=min(self.decoding.slots, len(requests)), memory=self.decoding.memory)
        answers = engine.run(requests)
        for index, answer in enumerate(answers):
            self._consultations[id(answer)] = (answer, engine.consultations[index])
        return answers

    def consultations(self, answer: Trajectory) -> list[Consultation]:
        """What the trigger said in an answer of this step; nothing without a trigger."""
        return self._consultations.get(id(answer), (answer, []))[1]


METRICS = Metrics(
    "MemGen: GRPO of the weaver or of the trigger",
    from_rewards(
        "memgen_grpo",
        "L_GRPO of the step's last update",
        "the weaver or the trigger",
        {
            "insertions": "blocks after delimiters per answer",
            "consultations": "times that the trigger was asked per answer",
            "agreed": "share of its answers that were yes",
        },
    )
    | GREEDY
    | {"greedy/insertions": "blocks after delimiters per greedy answer"},
    sections=("memgen",),
    about="Means are over the answers of the step. Where no trigger was asked, there is no loss nor what follows it.",
)


class MemGenTrainer(GrpoTrainer):
    """What the weaver and the trigger share: LoRA dropout is off, and nothing is compared with a reference.

    `config` is their section of the `whole` config. Raises RewardError for a reward of it that cannot be used.
    """

    metrics = METRICS

    def __init__(
        self,
        model: MemGen,
        problems: Sequence[Problem],
        whole: Config,
        config: MemGenGrpoConfig,
        development: Sequence[Problem] = (),
    ) -> None:
        self.engine, longest = MemGenRollouts(model, whole.decoding), config.max_new_tokens
        rewards = Rewards.of(whole.grpo, whole.rewards, config, longest, operators=False)
        loss = AnchoredLoss(config, longest)
        super().__init__(model, config, config, self.engine, rewards, loss, problems, development)
        self.model, self.config = model, config

    def request(self, problem: Problem, sampling: Sampling) -> Request:
        return self.model.request(
            problem,
            sampling=sampling,
            max_new_tokens=self.config.max_new_tokens,
            trigger_temperature=self.config.temperature,
        )

    def greedy_answers(self, problems: Sequence[Problem]) -> list[Trajectory]:
        longest = self.config.max_new_tokens
        return self.engine.answer([self.model.request(problem, max_new_tokens=longest) for problem in problems])

    def describe(self, rollout: Rollout) -> dict[str, float]:
        asked = [len(self.engine.consultations(answer)) for answer in rollout.trajectories]
        return {"consultations": sum(asked) / len(asked)}

    def describe_answers(self, answers: Sequence[Trajectory]) -> dict[str, float]:
        return {"insertions": sum(map(num_insertions, answers)) / len(answers)}

    def rollout_metrics(self, rollout: Rollout) -> dict[str, float]:
        """Means over the answers of a step, and over what the trigger said in them."""
        said = [one.decision for answer in rollout.trajectories for one in self.engine.consultations(answer)]
        everywhere = [decision for part in distributed.gather(said) for decision in part]
        agreed = sum(decision == YES for decision in everywhere) / max(1, len(everywhere))
        return super().rollout_metrics(rollout) | {"agreed": agreed}

    def padded(self, rows: list[list[float]]) -> Actions:
        """Recorded log-probabilities as actions, none of which calls an operator."""
        logprobs, mask = padded(rows, self.backbone.device)
        return Actions(logprobs, mask, torch.zeros_like(mask))


class WeaverGrpo(MemGenTrainer):
    """GRPO of the weaver: sampled tokens, around latents that are computed anew."""

    title = "MemGen weaver GRPO"

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(self.model.weaver.trainable(), self.config.learning_rate)]

    def actions(self, rollout: Rollout) -> Actions:
        return self.padded(
            [
                [value for value, is_operator in zip(one.logprobs, one.is_operator, strict=True) if not is_operator]
                for one in rollout.trajectories
            ]
        )

    def replay(self, rollout: Rollout, places: list[int]) -> tuple[Tensor, None]:
        """An answer may have no token where room ran out."""
        traces = [trace_of(rollout.trajectories[place]) for place in places]
        kept = [row for row, trace in enumerate(traces) if trace.target_ids]
        temperature, recomputed = self.config.temperature, self.config.gradient_checkpointing
        found, _ = replayed_logprobs(self.model, [traces[row] for row in kept], temperature, recomputed)
        logprobs = found.new_zeros(len(traces), found.shape[1])
        return logprobs.index_copy(0, torch.tensor(kept, device=found.device), found), None


class TriggerGrpo(MemGenTrainer):
    """GRPO of the trigger: its decisions are sampled, the tokens need not be, and the weaver is frozen."""

    title = "MemGen trigger GRPO"
    config: MemGenTriggerConfig

    @property
    def temperature(self) -> float:
        return self.config.token_temperature

    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        assert self.model.trigger is not None
        return [(self.model.trigger.trainable(), self.config.learning_rate)]

    def actions(self, rollout: Rollout) -> Actions:
        consulted = map(self.engine.consultations, rollout.trajectories)
        return self.padded([[one.logprob for one in said] for said in consulted])

    def replay(self, rollout: Rollout, places: list[int]) -> tuple[Tensor, None]:
        """One causal pass over prompts and visible tokens."""
        trigger, answers = self.model.trigger, [rollout.trajectories[place] for place in places]
        assert trigger is not None
        rows = [embed_ids(self.backbone, [*one.prompt_ids, *one.visible_ids]) for one in answers]
        read = read_packed(trigger.decoder, rows, recompute=self.config.gradient_checkpointing)
        logprobs = []
        for hidden, answer in zip(read, answers, strict=True):
            said = self.engine.consultations(answer)
            asked_at = [len(answer.prompt_ids) + one.position - 1 for one in said]
            decisions = torch.tensor([one.decision for one in said], dtype=torch.long, device=hidden.device)
            logits = trigger.logits(hidden[asked_at]) / self.config.temperature
            logprobs.append(logits.log_softmax(dim=-1).gather(-1, decisions[:, None]).squeeze(-1))
        return pad_sequence(logprobs, batch_first=True), None


def trace_of(trajectory: Trajectory) -> Trace:
    """An answer as a trace with blocks where they were; one that nothing follows has no effect and is left out."""
    targets = trajectory.visible_ids
    blocks = [Insertion(one.position, one.operator) for one in trajectory.invocations if one.position < len(targets)]
    return Trace("", trajectory.prompt_ids, targets, insertions=tuple(blocks))


@training_command
def run_weaver(config: Config, *, start: Path | str) -> Prepared[MemGen]:
    """`tyler train memgen-weaver-grpo`: the weaver of a MemGen learns.

    Raises ValueError for one that has a trigger, and for one of other settings than the config's.
    """
    config = with_sources(config)
    settings, model = config.of(MemGenConfig).weaver_grpo, trained_weaver(config, start)
    torch.manual_seed(settings.seed)
    model = model.with_engine(config.decoding.engine, **config.decoding.engine_args)
    return _prepared(model, model.fingerprint(), config, settings, WeaverGrpo)


@training_command
def run_trigger(config: Config, *, start: Path | str) -> Prepared[MemGen]:
    """`tyler train memgen-trigger`: the trigger of a MemGen learns, a new one where it has none.

    Raises ValueError for a MemGen of other settings than the config's.
    """
    config = with_sources(config)
    settings = config.of(MemGenConfig).trigger
    model = load_start(config, start)
    origin = model.fingerprint()
    torch.manual_seed(settings.seed)
    if config.decoding.engine != "native":
        raise ValueError(f"decoding.engine={config.decoding.engine}: a trigger runs on the native engine alone")
    if model.trigger is None:
        model = model.with_new_trigger(LoraSettings(**config.of(MemGenConfig).lora.model_dump()))
    return _prepared(model, origin, config, settings, TriggerGrpo)


def _prepared(
    model: MemGen, start: str, config: Config, settings: MemGenGrpoConfig, trainer: type[MemGenTrainer]
) -> Prepared[MemGen]:
    problems, development = load_problems_that_fit(config, settings, model.request, model.backbone)
    origin = origin_of(start, map(Problem.content, problems), model.backbone) | origins(config.rewards)
    parts = model, problems, config, settings, development
    return Prepared(model, origin, lambda run: trainer(*parts).train(run), config)


def rehearsed_weaver(backbone: Backbone, config: Config, problems: Sequence[Problem]) -> MemGenTrainer:
    """What a dry run takes a step of the weaver's GRPO with."""
    return WeaverGrpo(new_weaver(config, backbone), problems, config, config.of(MemGenConfig).weaver_grpo)


def rehearsed_trigger(backbone: Backbone, config: Config, problems: Sequence[Problem]) -> MemGenTrainer:
    """What a dry run takes a step of the trigger's GRPO with; it is asked, whatever random weights write."""
    memgen = config.of(MemGenConfig).model_copy(update={"trigger_at_prompt": True})
    model = new_weaver(config.model_copy(update={"memgen": memgen}), backbone)
    model = model.with_new_trigger(LoraSettings(**memgen.lora.model_dump()))
    return TriggerGrpo(model, problems, config, memgen.trigger)
