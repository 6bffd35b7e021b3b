"""What a training step costs: Stage 1 beside the plain full graph, Stage 2 by its parts, its spec beside TRL's.

    OMP_NUM_THREADS=1 python benchmarks/training.py [--only stage1 spec stage2] [--json out.json]

Competitors get the same weights and the same ids and must find the same gradients, which is checked first. Seconds are
the processor's, but for Stage 2's parts. Memory is
the most bytes alive at once in storages that a step's operations made (weights are not counted), to the byte, in a pass
of its own. Needs TRL for the learners, and the tests beside this folder, which count the bytes.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harness import Contest, Figure, Report, Spread, compete, options, read
from models import sized
from tyler.config.files import load_config
from tyler.config.loops import GrpoConfig, Stage1Config, Stage2Config
from tyler.config.schema import Config
from tyler.engine.request import Request
from tyler.engine.routing import Learned
from tyler.engine.sampling import Sampling
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.modeling.operators import PAPER_OPERATORS, Operator
from tyler.tasks import load_problems
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt
from tyler.training import stage1, stage2
from tyler.training.advantages import group_advantages
from tyler.training.calibration import collect_decisions, fit_psi
from tyler.training.micro_batches import MicroBatches
from tyler.training.optimizer import Optimization
from tyler.training.rollouts import Rollout
from tyler.training.teacher_forcing import Example, Insertion

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

Step = Callable[[], object]


def build(layers: int, dim: int, vocab: int, operators: Sequence[Operator] = PAPER_OPERATORS) -> Tyler:
    """A random Qwen3 of the given size, adapters that matter, no dropout."""
    lora = LoraSettings(dropout=0.0)
    tyler = Tyler.start(sized(layers, dim, vocab=vocab), operators, lora, prompt=Prompt(""))
    tyler.policy.add_lora(lora)
    for adapted in (tyler.synthesizer.lora, tyler.policy.lora):
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02)
    return tyler


# --- the same work --------------------------------------------------------------------------------------------------


def peaks(work: str, steps: dict[str, Step]) -> list[Figure]:
    """The most bytes that each way holds at once."""
    from allocations import Allocations

    figures = []
    for way, step in steps.items():
        with Allocations() as allocations:
            step()
        figures.append(Figure(f"{work}: peak memory", way, allocations.peak / 1e6, "MB"))
    return figures


def on_processor(steps: dict[str, Step]) -> dict[str, Step]:
    """The ways with seconds of the processor, where that is what computes: a machine's other work does not count."""

    def counted(step: Step) -> Step:
        def timed() -> float:
            started = time.process_time()
            step()
            return time.process_time() - started

        return timed

    return steps if torch.cuda.is_available() else {way: counted(step) for way, step in steps.items()}


def gradients(parameters: Sequence[Tensor], step: Step) -> Tensor:
    for parameter in parameters:
        parameter.grad = None
    step()
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([one.flatten() for one in found])


def check_equal(parameters: Sequence[Tensor], steps: dict[str, Step]) -> None:
    """All competitors compute the same gradient."""
    base, *others = (gradients(parameters, step) for step in steps.values())
    for name, other in zip(list(steps)[1:], others, strict=True):
        error = float((other - base).norm() / base.norm())
        assert error < 1e-3, f"{name} has another gradient: off by {error:.1e}"


# --- Stage 1 --------------------------------------------------------------------------------------------------------


def traces(count: int, length: int, blocks: int, vocab: int, random: Random) -> list[Example]:
    """Random ids: prompts a quarter of the length, lengths from half to all, blocks at random places."""
    examples = []
    for _ in range(count):
        total = random.randint(length // 2, length)
        ids = [random.randrange(vocab) for _ in range(total)]
        prompt = total // 4
        places = sorted(random.sample(range(total - prompt), blocks))
        insertions = tuple(Insertion(place, random.choice(PAPER_OPERATORS).name) for place in places)
        examples.append(Example(ids[:prompt], ids[prompt:], insertions))
    return examples


def full_graph(model: Tyler, examples: Sequence[Example], num_targets: int | None = None) -> None:
    """Stage 1 as the equations are written, in one graph: every block reads its whole context, every logit exists.

    The loss is divided by `num_targets`, by default the examples' own.
    """
    backbone, synthesizer = model.backbone, model.synthesizer.training_decoder
    num_targets = num_targets or sum(len(example.target_ids) for example in examples)
    total = torch.zeros((), device=backbone.device)
    for example in examples:
        ids = torch.tensor([*example.prompt_ids, *example.target_ids], device=backbone.device)
        embeds, start = backbone.embed(ids), len(example.prompt_ids)
        x, done, decided = embeds[:start], 0, []
        insertions = {one.position: one.operator for one in example.insertions}
        for target in range(len(example.target_ids)):
            if target in insertions:
                x = torch.cat([x, embeds[start + done : start + target]])
                head, done = model.heads[insertions[target]], target
                read = torch.cat([x, head.queries.to(x.dtype)])[None]
                hidden = synthesizer(inputs_embeds=read, use_cache=False).last_hidden_state[0, -head.num_latents :]
                x = torch.cat([x, head(hidden).to(x.dtype)])
            decided.append(len(x) + target - done - 1)
        x = torch.cat([x, embeds[start + done :]])
        logits = backbone.model(inputs_embeds=x[None], use_cache=False).logits[0, decided]
        targets = torch.tensor(example.target_ids, device=backbone.device)
        total = total + torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum") / num_targets
    total.backward()


def compare_stage1(report: Report, size: tuple[int, int, int], batch: int, length: int, blocks: int) -> None:
    model = build(*size)
    examples = traces(batch, length, blocks, size[2], Random(0))

    def ours(pieces: MicroBatches, recompute: bool = False) -> Step:
        def step() -> None:
            trainer = stage1.Stage1Trainer(model, (), Stage1Config(gradient_checkpointing=recompute))
            trainer.micro_batches = pieces
            trainer.accumulate(examples)

        return step

    steps: dict[str, Step] = {
        "plain full graph": lambda: full_graph(model, examples),
        "ours": ours(MicroBatches()),
        "ours, two at a time": ours(MicroBatches(2)),
        "ours, two, checkpointed": ours(MicroBatches(2), recompute=True),
    }
    check_equal(model.synthesizer.trainable(), steps)
    work = f"Stage 1, blocks: {blocks}"
    report.add(peaks(work, steps))
    report.add(
        compete([Contest(work, on_processor(steps), sum(map(len, examples)), "tokens")], report.arguments.rounds)
    )


# --- Stage 2 by its parts -------------------------------------------------------------------------------------------


def stage2_parts(report: Report, group_size: int, batch_size: int) -> None:
    """Seconds of a Stage 2 step on mini, from the backbone with fresh operators."""
    overrides = [f"grpo.group_size={group_size}", f"stage2.batch_size={batch_size}"]
    config, rounds = load_config("mini", overrides), report.arguments.rounds
    settings = config.stage2
    lora = LoraSettings(**config.lora.model_dump())
    model = Tyler.start(Backbone.load("mini"), config.operators, lora, config.prompt)
    model.policy.add_lora(lora)
    problems = load_problems("mini", "train", count=max(16, batch_size * rounds))
    longest, temperature = settings.max_new_tokens, config.grpo.temperature
    decisions = collect_decisions(
        model, problems[:16], temperature=temperature, max_new_tokens=longest, slots=64, seed=1
    )
    psi = fit_psi(decisions, len(model.operators), settings.calibration)
    model.policy.psi.data.copy_(psi)
    trainer = stage2.Stage2Trainer(model, problems, (), config)
    trainer.reference_psi.copy_(psi)
    optimization = Optimization.of(settings, trainer.parameter_groups(), rounds)
    parts: dict[str, list[float]] = defaultdict(list)
    actions = 0
    for step in range(rounds):
        rollout = trainer.roll_out(problems[step * batch_size : (step + 1) * batch_size], step)
        for name, seconds in rollout.seconds.items():
            parts[name].append(seconds)
        started = time.perf_counter()
        trainer.improve(rollout, optimization, step)
        parts["learning"].append(time.perf_counter() - started)
        actions += sum(len(one.actions) for one in rollout.trajectories)
    whole = [sum(values) for values in zip(parts["rollout"], parts["grading"], parts["learning"], strict=True)]
    for name in ("rollout", "synthesis", "grading", "learning"):
        shares = Spread.of([part / total for part, total in zip(parts[name], whole, strict=True)])
        work = f"Stage 2 on mini, {batch_size} problems of {group_size} rollouts: {name}"
        report.add([Figure(work, "a step", Spread.of(parts[name]).median, "s")])
        report.add([Figure(work, f"share ({shares.low:.2f} to {shares.high:.2f})", shares.median, "")])
    report.add([Figure("Stage 2 on mini", "actions, whole steps", actions / sum(whole), "a second")])


# --- the spec beside TRL's ---------------------------------------------------------------------------------------


def rolled_out(model: Tyler, groups: int, group_size: int, longest: int, vocab: int) -> Rollout:
    """Answers without operators on random prompts, their lengths from a quarter of the longest; random rewards."""
    random, trajectories = Random(1), []
    problems = [Problem(f"p{index}", "jsonl", "x", "5") for index in range(groups)]
    requests = []
    for _ in problems:
        prompt = [random.randrange(vocab) for _ in range(random.randint(40, 80))]
        for member in range(group_size):
            sampling = Sampling(1.0, seed=member)
            requests.append(Request(prompt, Learned(), sampling, max_new_tokens=random.randint(longest // 4, longest)))
    trajectories = model.engine(slots=16).run(requests)
    rewards = torch.tensor([[float(random.random() < 0.5) for _ in range(group_size)] for _ in problems])
    return Rollout(problems, trajectories, [], rewards)


def trl_learner(model: Tyler, rollout: Rollout, grpo: GrpoConfig, size: int) -> Step:
    """TRL's loss and log-probabilities on the same ids; its reference is the adapter switched off."""
    from trl import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    class GrpoSpec(GRPOTrainer):
        """TRL's loss without a trainer around it, `loss_type="grpo"`."""

        def __init__(self) -> None:
            self.loss_type, self.importance_sampling_level = "grpo", "token"
            self.beta, self.epsilon_low, self.epsilon_high = grpo.kl_weight, grpo.clip_range, grpo.clip_range
            self.args = SimpleNamespace(use_bias_correction_kl=False, delta=None, report_to=[])
            self.aux_loss_enabled = self.use_vllm = self._entropy_bonus_enabled = False
            self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
            self.model = SimpleNamespace(training=True)
            self.current_gradient_accumulation_steps = -(-len(rollout.trajectories) // size)
            self.accelerator = SimpleNamespace(
                gather=lambda value: value,
                reduce=lambda value, reduction: value,
                is_main_process=False,
                autocast=lambda: torch.autocast("cpu", enabled=False),
            )
            self._metrics = {"train": defaultdict(list)}

    lora = model.policy.lora
    assert lora is not None
    add_fused_lm_head(lora.get_base_model(), temperature=grpo.temperature, outputs=("log_probs", "entropy"))
    trainer, trajectories = GrpoSpec(), rollout.trajectories
    advantages = group_advantages(rollout.rewards, grpo.advantage_epsilon).flatten()

    def inputs(first: int) -> dict[str, Tensor]:
        part = trajectories[first : first + size]
        prompts = [torch.tensor(one.prompt_ids) for one in part]
        answers = [torch.tensor(one.actions) for one in part]
        old = [torch.tensor(one.logprobs) for one in part]
        flipped = pad_sequence([one.flip(0) for one in prompts], batch_first=True).flip(1)  # padded on the left
        there = pad_sequence([torch.ones_like(one) for one in prompts], batch_first=True).flip(1)
        return {
            "prompt_ids": flipped,
            "prompt_mask": there,
            "completion_ids": pad_sequence(answers, batch_first=True),
            "completion_mask": pad_sequence([torch.ones_like(one) for one in answers], batch_first=True),
            "old_per_token_logps": pad_sequence(old, batch_first=True),
            "advantages": advantages[first : first + size],
        }

    def step() -> None:
        for first in range(0, len(trajectories), size):
            batch = inputs(first)
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            with torch.no_grad(), lora.disable_adapter():
                reference, _, _ = trainer._get_per_token_logps_and_entropies(
                    lora, ids, mask, batch["completion_ids"].shape[1]
                )
            trainer._compute_loss(lora, {**batch, "ref_per_token_logps": reference}).backward()

    return step


def compare_learners(report: Report, size: tuple[int, int, int], longest: int) -> None:
    model = build(*size, operators=())
    grpo = GrpoConfig(group_size=8)
    rollout = rolled_out(model, 2, 8, longest, size[2])

    def ours(pieces: MicroBatches, recompute: bool = False) -> Step:
        learning = Stage2Config(batch_size=16, micro_batch_size=together, gradient_checkpointing=recompute)
        config = Config(stage2=learning, grpo=grpo)
        trainer = stage2.Stage2Trainer(model, rollout.problems, (), config)
        return lambda: trainer.learn(replace(rollout, start=None))

    lora = model.policy.lora
    assert lora is not None
    learners: dict[str, Step] = {
        "TRL": trl_learner(model, rollout, grpo, 16),
        "TRL, four at a time": trl_learner(model, rollout, grpo, 4),
        "ours": ours(16),
        "ours, four at a time": ours(4),
        "ours, four, checkpointed": ours(4, recompute=True),
    }
    check_equal([one for one in lora.parameters() if one.requires_grad], learners)
    work = "the spec of Stage 2"
    report.add(peaks(work, learners))
    actions = sum(len(one.actions) for one in rollout.trajectories)
    report.add(compete([Contest(work, on_processor(learners), actions, "actions")], report.arguments.rounds))


def main() -> None:
    parser = options(__doc__)
    parts = ("stage1", "spec", "stage2")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=2048)
    parser.add_argument(
        "--length", type=int, default=128, help="of the longest trace and answer; the others are shorter"
    )
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 6], help="latent blocks of a trace")
    arguments = read(parser)
    report = Report("training", arguments)
    size, length = (arguments.layers, arguments.dim, arguments.vocab), arguments.length
    if arguments.quick:
        size, length = (2, 128, 512), 64
    if "stage1" in arguments.only:
        for blocks in arguments.blocks:
            compare_stage1(report, size, 8, length, blocks)
    if "spec" in arguments.only:
        compare_learners(report, size, length)
    if "stage2" in arguments.only:
        stage2_parts(report, *((4, 2) if arguments.quick else (8, 8)))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
