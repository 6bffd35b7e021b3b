"""Stage 2: its loss against the paper's sums, what it moves, what it reports, and that it can be killed."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny
from documents import documented_metrics
from interrupted import whole_and_resumed
from tyler.config.files import load_config
from tyler.config.loops import CalibrationConfig, GrpoConfig, Stage1Config, Stage2Config
from tyler.config.schema import Config
from tyler.config.sections import DataConfig, DecodingConfig
from tyler.engine.base import longest_action
from tyler.engine.sampling import Sampling, seed_of
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings, lora_layers
from tyler.reasoners.softcot.settings import SoftCotConfig
from tyler.runs.checkpoints import best_checkpoint
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import Run
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.training import grpo, stage1, stage2, verdicts
from tyler.training.command import load_problems_that_fit
from tyler.training.optimizer import state_bytes
from tyler.training.policy_losses import group_advantages
from tyler.training.rollouts import Rollout
from tyler.training.stage2 import Stage2Trainer
from weights import everything_of, moved

PROBLEMS = [Problem(f"p{index}", "jsonl", text, "5") for index, text in enumerate(tiny.PROMPTS)]
NAMES = [operator.name for operator in tiny.OPERATORS]
CONFIG = Config(
    operators=tiny.OPERATORS,
    stage2=Stage2Config(
        steps=4,
        batch_size=2,
        learning_rate=0.02,
        psi_learning_rate=0.01,
        max_new_tokens=16,
        checkpoint_every=2,
        max_skipped=0,
        calibration=CalibrationConfig(num_problems=4, steps=30),
    ),
    grpo=GrpoConfig(group_size=3, budget=1, budget_weight=0.2, anchor_weight=0.5, kl_weight=0.3, temperature=0.8),
    decoding=DecodingConfig(slots=4),
)


def verdict(task: str, completion: str, gold: str, **_: object) -> Verdict:
    """A verifier that a random model satisfies about every other time."""
    return Verdict(Outcome.CORRECT if len(completion) % 2 else Outcome.WRONG, completion[:1])


@pytest.fixture(autouse=True)
def _a_verifier_that_random_models_can_satisfy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "grade", verdict)


def fresh(dropout: float = 0.0) -> Tyler:
    """A model of its own as Stage 2 meets it: a trained synthesizer, a new eta (B = 0), psi to be calibrated."""
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"]).at_stage("stage2")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model.policy.add_lora(LoraSettings(rank=4, alpha=8, dropout=dropout))
    return model


def with_settings(config: Config, **settings: Any) -> Config:
    """`config` with other keys of its stage2 and grpo sections."""
    for section in ("stage2", "grpo"):
        part = getattr(config, section)
        mine = {key: value for key, value in settings.items() if key in type(part).model_fields}
        config = config.model_copy(update={section: part.model_copy(update=mine)})
    return config


def trainer_of(model: Tyler, config: Config = CONFIG, development: Sequence[Problem] = ()) -> Stage2Trainer:
    return Stage2Trainer(model, PROBLEMS, development, config)


def roll_out(
    model: Tyler, problems: Sequence[Problem], config: Config, step: int, repeats: Sequence[int] = ()
) -> Rollout:
    return trainer_of(model, config).roll_out(problems, step, repeats)


def open_new(path: Path) -> Run:
    return Run.create(path, "stage2: {}\n")


def trained(path: Path, model: Tyler, config: Config = CONFIG, development: list[Problem] | None = None) -> list[dict]:
    with open_new(path) as run:
        Stage2Trainer(model, PROBLEMS, development or [], config).train(run)
    return read_jsonl(path / "metrics.jsonl")


# ----------------------------------------------------------------------------------------- the rollout


def test_a_group_is_sampled_for_every_problem_with_seeds_of_its_own() -> None:
    model = tiny.tyler("qwen3")
    rollout = roll_out(model, PROBLEMS[:2], CONFIG, step=0)
    size = CONFIG.grpo.group_size
    assert len(rollout.trajectories) == 2 * size
    for index, trajectory in enumerate(rollout.trajectories):
        assert trajectory.prompt_ids == list(model.request(PROBLEMS[index // size].prompt).prompt_ids)
        assert trajectory.budget is None, "the budget is a penalty here, not a cap"
        assert trajectory.sampling.temperature == CONFIG.grpo.temperature
        assert trajectory.offered == (True, True, True)
        assert len(trajectory.actions) <= CONFIG.stage2.max_new_tokens
    seeds = [trajectory.sampling.seed for trajectory in rollout.trajectories]
    later = [trajectory.sampling.seed for trajectory in roll_out(model, PROBLEMS[:2], CONFIG, step=1).trajectories]
    assert len({*seeds, *later}) == 4 * size
    assert len({tuple(trajectory.actions) for trajectory in rollout.trajectories[:size]}) > 1


def test_a_problem_that_a_batch_has_twice_is_answered_otherwise_the_second_time() -> None:
    batch = [PROBLEMS[0], PROBLEMS[1], PROBLEMS[0]]
    assert grpo.repeats_in(batch) == [0, 0, 1]
    model, size = tiny.tyler("qwen3"), CONFIG.grpo.group_size
    seeds = [
        trajectory.sampling.seed
        for trajectory in roll_out(model, batch, CONFIG, step=0, repeats=grpo.repeats_in(batch)).trajectories
    ]
    assert len(set(seeds)) == 3 * size
    assert seeds[: 2 * size] == [one.sampling.seed for one in roll_out(model, batch[:2], CONFIG, step=0).trajectories]


def test_problems_that_leave_no_room_for_an_answer_are_left_out_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"problem": "x " * (1 + 900 * (n == 1)), "answer": "5"} for n in range(3)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = CONFIG.model_copy(update={"data": DataConfig(task="jsonl", path=str(tmp_path / "data.jsonl"))})
    model = tiny.tyler("qwen3")
    room = model.backbone.max_positions - longest_action(model.heads)
    assert config.most_latents > longest_action(model.heads), "of MemGen"
    model.shared_engine.run([replace(model.request("x"), prompt_ids=[5] * room, max_new_tokens=1)])
    with pytest.raises(ValueError, match="the prompt has"):
        model.shared_engine.run([replace(model.request("x"), prompt_ids=[5] * (room + 1), max_new_tokens=1)])
    problems, development = load_problems_that_fit(config, config.stage2, model.request, model.backbone)
    assert [problem.id for problem in problems] == ["train-1", "train-3"] and development == []
    kept = model.backbone.max_positions - config.most_latents
    assert f"left out 1 of 3 training problems, with prompts of over {kept} tokens: train-2" in caplog.text
    many = config.model_copy(update={"softcot": SoftCotConfig(num_thoughts=model.backbone.max_positions - 2)})
    with pytest.raises(ValueError, match=r"all 3 training problems have prompts of more than 2 tokens"):
        load_problems_that_fit(many, config.stage2, model.request, model.backbone)


def test_a_seed_depends_on_every_part_and_not_on_the_machine() -> None:
    assert seed_of(42, 0, "p1", 3) == seed_of(42, 0, "p1", 3) == 230969984548635
    others = [seed_of(43, 0, "p1", 3), seed_of(42, 1, "p1", 3), seed_of(42, 0, "p2", 3), seed_of(42, 0, "p1", 4)]
    assert len({seed_of(42, 0, "p1", 3), *others}) == 5


# ------------------------------------------------------------------------------- the loss, by the sums


def action_logprobs(model: Tyler, psi: Tensor, reference: bool, rollout: Rollout) -> list[list[Tensor]]:
    """log p(a_ij | x_ij) of every action: one full pass per trajectory, the contexts built by hand."""
    found = []
    for trajectory in rollout.trajectories:
        embedding = model.backbone.model.get_input_embeddings().weight
        pieces, lengths = [embedding[trajectory.prompt_ids]], []
        latents = iter(trajectory.latents)
        for action in trajectory.actions:
            lengths.append(sum(len(piece) for piece in pieces))
            pieces.append(next(latents) if action >= model.backbone.vocab_size else embedding[[action]])
        x = torch.cat(pieces)[None]
        network = model.backbone.model if reference else model.policy.lora
        out = network(inputs_embeds=x, use_cache=False, output_hidden_states=True)
        logits = torch.cat([out.logits[0], out.hidden_states[-1][0] @ psi.T], dim=1) / trajectory.sampling.temperature
        logprobs = logits.log_softmax(dim=1)
        pairs = zip(lengths, trajectory.actions, strict=True)
        found.append([logprobs[length - 1, action] for length, action in pairs])
    return found


def slow_loss(model: Tyler, reference_psi: Tensor, rollout: Rollout, config: Config) -> Tensor:
    """L_stage2 = L_GRPO + alpha L_anch over prompts, sum by sum (Eqs. app-grpo-*, app-operator-anchor-loss)."""
    grpo, vocab = config.grpo, model.backbone.vocab_size
    new = action_logprobs(model, model.policy.psi, False, rollout)
    with torch.no_grad():
        start = action_logprobs(model, reference_psi, True, rollout)
    total = torch.zeros(())
    num_groups = len(rollout.problems)
    for group in range(num_groups):
        members = range(group * grpo.group_size, (group + 1) * grpo.group_size)
        rewards = []
        for i in members:
            success = len(rollout.trajectories[i].text) % 2 == 1
            over = max(0, sum(a >= vocab for a in rollout.trajectories[i].actions) - grpo.budget)
            rewards.append(float(success) - grpo.budget_weight * success * over)
        mean = sum(rewards) / len(rewards)
        std = (sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) ** 0.5
        surrogate_sum, anchor_sum, num_operators = torch.zeros(()), torch.zeros(()), 0
        for i, reward in zip(members, rewards, strict=True):
            advantage = (reward - mean) / (std + 1e-4)
            actions = rollout.trajectories[i].actions
            for j, action in enumerate(actions):
                ratio = torch.exp(new[i][j] - rollout.trajectories[i].logprobs[j])
                clipped = torch.clip(ratio, 1 - grpo.clip_range, 1 + grpo.clip_range)
                surrogate = torch.min(ratio * advantage, clipped * advantage)
                log_ratio = start[i][j] - new[i][j]
                kl = torch.exp(log_ratio) - log_ratio - 1
                surrogate_sum = surrogate_sum + (surrogate - grpo.kl_weight * kl) / len(actions) / grpo.group_size
                if action >= vocab:
                    anchor_sum, num_operators = anchor_sum + surrogate, num_operators + 1
        total = total - surrogate_sum
        if num_operators:
            total = total - grpo.anchor_weight * anchor_sum / num_operators
    return total / num_groups


def moved_policy(
    family: str = "qwen3", device: str = "cpu", dtypes: Sequence[torch.dtype] = ()
) -> tuple[Tyler, Rollout, Tensor]:
    """A policy some updates after its rollout: ratios away from 1, clips that bind, another psi in the reference."""
    model = tiny.build(family, tiny.SEEDS[family], device=device, dtypes=dtypes)
    rollout = roll_out(model, PROBLEMS, CONFIG, step=0)
    draw = torch.Generator().manual_seed(2)
    reference_psi = model.policy.psi.detach() + 0.1 * torch.randn(model.policy.psi.shape, generator=draw).to(device)
    learned(model, rollout, reference_psi, CONFIG)  # the first update notes what learner and reference give
    with torch.no_grad():
        for parameter in (model.policy.psi, *model.policy.lora.parameters()):
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=draw).to(device)
    return model, rollout, reference_psi


def trainable(model: Tyler) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.policy.named_parameters() if parameter.requires_grad}


def learned(
    model: Tyler, rollout: Rollout, reference_psi: Tensor, config: Config
) -> tuple[dict[str, float], dict[str, Tensor]]:
    for parameter in trainable(model).values():
        parameter.grad = None
    trainer = trainer_of(model, config)
    trainer.reference_psi.copy_(reference_psi)
    terms = trainer.learn(rollout)
    return terms, {name: parameter.grad.clone() for name, parameter in trainable(model).items()}


VARIANTS: dict[str, dict[str, float]] = {
    "all": {},
    "no anchor": {"anchor_weight": 0.0},
    "no kl": {"kl_weight": 0.0},
    "tight": {"clip_range": 0.05},
}


@pytest.mark.parametrize(
    "family, variant",
    [*((family, "all") for family in tiny.FAMILIES), *(("qwen3", name) for name in VARIANTS if name != "all")],
)
def test_the_loss_and_its_gradients_are_the_papers_sums(family: str, variant: str) -> None:
    config = with_settings(CONFIG, **VARIANTS[variant])
    model, rollout, reference_psi = moved_policy(family)
    terms, gradients = learned(model, rollout, reference_psi, config)
    assert terms["clip_share"] > 0 and terms["operator_clip_share"] > 0, "the clip must bind"
    assert len(set(rollout.rewards.flatten().tolist())) > (2 if family == "qwen3" else 1)
    expected = slow_loss(model, reference_psi, rollout, config)
    named = trainable(model)
    slow = dict(zip(named, torch.autograd.grad(expected, list(named.values())), strict=True))
    assert terms["loss"] == pytest.approx(expected.item(), abs=2e-5)
    assert set(gradients) == {"psi", *(name for name in slow if "lora_" in name)}
    for name, gradient in slow.items():
        assert gradient.norm() > 1e-4
        assert (gradients[name] - gradient).norm() / gradient.norm() < 1e-3, name


@pytest.mark.parametrize(
    "cut, recomputed",
    [
        ({"micro_batch_size": 1}, 0),
        ({"micro_batch_size": 4}, 0),
        ({"micro_batch_size": 5}, 0),
        ({"micro_batch_tokens": 150}, 0),
        # four of the six have two answers to one prompt, which is read before them
        ({"micro_batch_size": 2, "gradient_checkpointing": True}, 6 + 4),
    ],
)
def test_micro_batches_and_gradient_checkpointing_have_the_gradient_and_the_terms_of_the_whole_batch(
    cut: dict[str, int], recomputed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rollout, reference_psi = moved_policy()
    layers = tiny.count_recomputed(monkeypatch)
    assert len({len(trajectory.actions) for trajectory in rollout.trajectories}) > 1
    whole_terms, whole = learned(model, rollout, reference_psi, CONFIG)
    config = with_settings(CONFIG, **cut)
    terms, parts = learned(model, rollout, reference_psi, config)
    assert len(layers) == recomputed * model.backbone.model.config.num_hidden_layers
    assert terms == pytest.approx(whole_terms, abs=1e-5)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-5, rtol=1e-3)


def test_without_a_kl_term_the_reference_is_not_read_and_its_kl_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rollout, reference_psi = moved_policy()
    read = []
    reference_of = type(model.policy).reference_decoder.fget

    def counted(policy: Any) -> Any:
        read.append(policy)
        return reference_of(policy)

    monkeypatch.setattr(type(model.policy), "reference_decoder", property(counted))
    terms, _ = learned(model, replace(rollout, start=None), reference_psi, CONFIG)
    assert read and terms["kl"] > 0
    read.clear()
    assert learned(model, rollout, reference_psi, CONFIG)[0]["kl"] > 0 and not read, "once a rollout"
    read.clear()
    terms, _ = learned(model, replace(rollout, start=None), reference_psi, with_settings(CONFIG, kl_weight=0.0))
    assert not read and "kl" not in terms


def test_rollouts_keep_to_the_bound_on_memory_and_do_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bounds = fresh(), []
    run = type(model.shared_engine).run

    def noted(engine: Any, *arguments: Any, **settings: Any) -> Any:
        bounds.append(settings.get("memory"))
        return run(engine, *arguments, **settings)

    monkeypatch.setattr(type(model.shared_engine), "run", noted)
    bounded = CONFIG.model_copy(update={"decoding": CONFIG.decoding.model_copy(update={"memory": 2_000_000})})
    found = [roll_out(model, PROBLEMS, config, step=0) for config in (CONFIG, bounded)]
    trainer_of(model, bounded, PROBLEMS).evaluate()
    with open_new(tmp_path) as directory:
        trainer_of(model, bounded, PROBLEMS).start(directory)
    assert bounds == [None, 2_000_000, 2_000_000, 2_000_000]
    assert [one.actions for one in found[0].trajectories] == [one.actions for one in found[1].trajectories]


def test_a_share_of_a_batch_is_scaled_by_the_rewards_of_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.5]])
    whole, mine, other = (Rollout([], [], [], part) for part in (rewards, rewards[:2], rewards[2:]))
    for scale in ("group", "batch", "none"):
        objective = CONFIG.grpo.model_copy(update={"scale_rewards": scale})
        expected = group_advantages(rewards, objective.advantage_epsilon, scale=scale)
        trainer = trainer_of(tiny.tyler("qwen3"), CONFIG.model_copy(update={"grpo": objective}))
        assert torch.equal(trainer.advantages(whole), expected.flatten())
        with monkeypatch.context() as patch:
            patch.setattr(grpo.distributed, "gather", lambda part: [part, other.rewards])
            torch.testing.assert_close(trainer.advantages(mine), expected[:2].flatten())


# ---------------------------------------------------------------------------------------------- learns


def test_stage_2_moves_all_of_eta_and_psi_and_nothing_else(tmp_path: Path) -> None:
    model = fresh()
    before = everything_of(model)
    metrics = trained(tmp_path, model)
    eta = {name for name in before if name.startswith("policy.") and "lora_" in name}
    assert moved(before, everything_of(model)) == {"policy.psi", *eta}
    assert len(eta) == 4 * model.backbone.model.config.num_hidden_layers
    assert [entry["step"] for entry in metrics] == [0, 1, 2, 3, 4]
    assert all(key.startswith("calibration/") for key in metrics[0] if key != "step")
    assert metrics[1]["stage2/invocations"] > 0, "operators are sampled from the first step"


def test_eta_and_psi_have_learning_rates_of_their_own() -> None:
    model = fresh()
    (eta, eta_rate), (psi, psi_rate) = trainer_of(model).parameter_groups()
    assert (eta_rate, psi_rate) == (0.02, 0.01)
    assert [id(parameter) for parameter in psi] == [id(model.policy.psi)]
    assert {id(parameter) for parameter in [*eta, *psi]} == {id(parameter) for parameter in trainable(model).values()}
    (_, eta_rate), (_, psi_rate) = trainer_of(model, with_settings(CONFIG, psi_learning_rate=None)).parameter_groups()
    assert eta_rate == psi_rate == 0.02


def test_replay_is_the_rollout_although_eta_has_dropout(tmp_path: Path) -> None:
    metrics = trained(tmp_path, fresh(dropout=0.5))
    assert all(entry["stage2/replay_gap"] < 1e-5 for entry in metrics[1:])
    assert metrics[1]["stage2/kl"] == pytest.approx(0, abs=1e-6), "the policy starts as its reference"
    assert all(entry["stage2/kl"] > 1e-6 for entry in metrics[2:])
    assert all(entry["stage2/clip_share"] == 0 for entry in metrics[1:])


def test_several_updates_on_a_rollout_leave_its_policy_behind(tmp_path: Path) -> None:
    settings = {"updates_per_rollout": 3, "steps": 2, "clip_range": 0.01}
    metrics = trained(tmp_path, fresh(), with_settings(CONFIG, **settings))
    assert all(entry["stage2/clip_share"] > 0 for entry in metrics[1:])
    assert all(entry["stage2/replay_gap"] < 1e-5 for entry in metrics[1:]), "the engine is compared with the first"


def test_a_penalty_on_successes_over_the_budget_makes_invocations_rare(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "grade", lambda *_, **__: Verdict(Outcome.CORRECT))
    settings = {"steps": 12, "group_size": 6, "budget": 0, "kl_weight": 0.0, "psi_learning_rate": 0.1}
    calls = [entry["stage2/invocations"] for entry in trained(tmp_path, fresh(), with_settings(CONFIG, **settings))[1:]]
    assert sum(calls[-3:]) < 0.6 * sum(calls[:3])


def test_failures_are_not_punished_for_what_they_spend(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "grade", lambda *_, **__: Verdict(Outcome.WRONG))
    metrics = trained(tmp_path, fresh(), with_settings(CONFIG, budget=0, kl_weight=0.0, steps=2))
    assert all(entry["stage2/reward"] == 0 and entry["stage2/over_budget"] > 0 for entry in metrics[1:])
    assert all(entry["stage2/degenerate_groups"] == 1 and entry["stage2/gradient_norm"] == 0 for entry in metrics[1:])


# ------------------------------------------------------------------------------- metrics and the trail


def documented() -> set[str]:
    """The documented keys of Stage 2, with {operator} and {reward} filled in."""
    rewards = ("verifier", "budget")
    return {
        key.replace("{operator}", name).replace("{reward}", reward)
        for key in documented_metrics()
        for name in NAMES
        for reward in rewards
    }


def test_what_is_logged_is_what_is_documented(tmp_path: Path) -> None:
    config = with_settings(CONFIG, eval_every=2)
    metrics = trained(tmp_path, fresh(), config, PROBLEMS[:2])
    logged = {key for entry in metrics for key in entry} - {"step"}
    expected = {key for key in documented() if key.startswith(("stage2/", "greedy/", "calibration/"))}
    assert logged == expected - {"greedy/insertions"}  # MemGen's
    assert ["greedy/accuracy" in entry for entry in metrics] == [False, False, True, False, True]
    assert {key for key in metrics[1] if key.startswith("greedy/")} == set()


def test_the_metrics_of_a_rollout_recount_it() -> None:
    model = tiny.tyler("qwen3")
    rollout = roll_out(model, PROBLEMS, CONFIG, step=0)
    found = trainer_of(model).rollout_metrics(rollout)
    metrics = {f"stage2/{name}": value for name, value in found.items()}
    count = len(rollout.trajectories)
    calls = [[call.operator for call in trajectory.invocations] for trajectory in rollout.trajectories]
    assert metrics["stage2/invocations"] == pytest.approx(sum(map(len, calls)) / count)
    for name in NAMES:
        assert metrics[f"stage2/invocations_{name}"] == pytest.approx(sum(one.count(name) for one in calls) / count)
    assert metrics["stage2/over_budget"] == pytest.approx(sum(len(one) > 1 for one in calls) / count)
    assert 0 < metrics["stage2/over_budget"] < 1
    texts = [trajectory.text for trajectory in rollout.trajectories]
    assert metrics["stage2/success"] == pytest.approx(sum(len(text) % 2 for text in texts) / count)
    assert metrics["stage2/gold_errors"] == 0.0
    assert metrics["stage2/degenerate_groups"] == sum(row.min() == row.max() for row in rollout.rewards) / len(PROBLEMS)
    assert metrics["stage2/truncated"] == pytest.approx(
        sum(trajectory.finish_reason == "length" for trajectory in rollout.trajectories) / count
    )
    visible = [sum(action < model.backbone.vocab_size for action in t.actions) for t in rollout.trajectories]
    assert metrics["stage2/visible_tokens"] == pytest.approx(sum(visible) / count)
    sizes = {operator.name: operator.num_latents for operator in tiny.OPERATORS}
    assert metrics["stage2/latents"] == pytest.approx(sum(sizes[name] for one in calls for name in one) / count)


def test_greedy_metrics_are_those_of_greedy_answers_by_the_policy() -> None:
    model = tiny.tyler("qwen3")
    metrics = trainer_of(model, CONFIG, PROBLEMS).evaluate()
    answers = model.solve([problem.prompt for problem in PROBLEMS], max_new_tokens=CONFIG.stage2.max_new_tokens)
    assert metrics["greedy/accuracy"] == pytest.approx(sum(len(answer.text) % 2 for answer in answers) / len(answers))
    assert metrics["greedy/invocations"] == pytest.approx(
        sum(answer.num_invocations for answer in answers) / len(answers)
    )
    assert answers[0].sampling == Sampling()


def test_every_rollout_leaves_a_line_in_the_audit_trail(tmp_path: Path) -> None:
    trained(tmp_path, fresh())
    lines = read_jsonl(tmp_path / "trajectories.jsonl.gz")
    size = CONFIG.grpo.group_size
    assert len(lines) == CONFIG.stage2.steps * CONFIG.stage2.batch_size * size
    assert [line["member"] for line in lines[:size]] == list(range(size))
    assert {line["problem"] for line in lines} == {problem.id for problem in PROBLEMS}
    cases = {(line["outcome"], len(line["invocations"]) > CONFIG.grpo.budget) for line in lines}
    assert {("correct", True), ("correct", False)} < cases, "successes over the budget and within it, and failures"
    for line in lines:
        assert set(line) >= {"step", "text", "invocations", "budget", "outcome", "reward", "finish_reason", "seed"}
        success = len(line["text"]) % 2
        over = max(0, len(line["invocations"]) - CONFIG.grpo.budget)
        assert line["outcome"] == ("correct" if success else "wrong")
        for _, position, num_latents, offset in line["invocations"]:
            assert num_latents > 0 and 0 <= offset <= len(line["text"])
            assert (position == 0) <= (offset == 0), "no text without a token"
        assert line["reward"] == pytest.approx(success * (1 - CONFIG.grpo.budget_weight * over))


# ---------------------------------------------------------------------------------- killed and resumed


@pytest.mark.parametrize("after", [1, 3])
def test_a_killed_run_resumes_to_the_same_bits(after: int, tmp_path: Path) -> None:
    config = with_settings(CONFIG, updates_per_rollout=2)
    whole_and_resumed(tmp_path, after, fresh, lambda model, run: Stage2Trainer(model, PROBLEMS, [], config).train(run))
    for name in ("operators.safetensors", "state.safetensors", "policy/adapter_model.safetensors"):
        files = [tmp_path / run / "checkpoints" / "step-4" / name for run in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    whole, cut = (read_jsonl(tmp_path / run / "metrics.jsonl") for run in ("whole", "cut"))
    assert [without_seconds(entry) for entry in whole] == [without_seconds(entry) for entry in cut]
    trails = [(tmp_path / run / "trajectories.jsonl.gz").read_bytes() for run in ("whole", "cut")]
    assert trails[0] == trails[1]


def without_seconds(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if "seconds" not in key}


def test_a_loss_that_is_not_a_number_stops_before_the_weights_and_names_the_problems(
    tmp_path: Path, monkeypatch
) -> None:
    model = fresh()
    monkeypatch.setattr(grpo, "group_advantages", lambda rewards, *_, **__: rewards * float("nan"))
    with pytest.raises(FloatingPointError, match=r"nan at update 1; the batch was p\d, p\d\."):
        trained(tmp_path, model)
    assert all(torch.isfinite(parameter).all() for parameter in model.policy.parameters())


def test_the_checkpoint_with_the_best_greedy_accuracy_stays(tmp_path: Path, monkeypatch) -> None:
    found = iter([0.2, 0.6, 0.4, 0.6, 0.1])
    monkeypatch.setattr(Stage2Trainer, "evaluate", lambda _: {"greedy/accuracy": next(found)})
    trained(tmp_path, fresh(), with_settings(CONFIG, eval_every=1, checkpoint_every=3, steps=5), PROBLEMS[:1])
    best = best_checkpoint(tmp_path)
    assert best is not None and best.name == "step-2", "of equal accuracies the earlier one"
    assert sorted(path.name for path in best.parent.iterdir()) == ["best", "step-2", "step-3", "step-5"]


def test_a_checkpoint_takes_about_the_space_that_was_foretold(tmp_path: Path) -> None:
    model = fresh()
    trained(tmp_path, model)
    state = [*trainable(model).values(), model.policy.psi.detach()]
    foretold = state_bytes(state) + model.saved_bytes()
    found = sum(path.stat().st_size for path in (tmp_path / "checkpoints" / "step-4").rglob("*") if path.is_file())
    assert foretold < found < foretold + 40_000, "beyond the tensors there are small files"


# ----------------------------------------------------------------------------------------- the command


def test_the_command_goes_from_a_stage_1_run_to_a_model_that_loads(tmp_path: Path) -> None:
    start = tmp_path / "start"
    rows = [{"problem": f"How many {i} x?", "solution": "Step 1: so \\boxed{5}", "answer": "5"} for i in range(3)]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    backbone = tiny.tyler("qwen3").backbone
    tiny.save(backbone, tmp_path / "backbone")
    config = with_settings(CONFIG, steps=1).model_copy(
        update={
            "backbone": CONFIG.backbone.model_copy(update={"id": str(tmp_path / "backbone")}),
            "data": DataConfig(task="jsonl", path=str(tmp_path / "traces.jsonl")),
            "stage1": Stage1Config(steps=1, batch_size=2),
        }
    )
    stage1.run(config, output=start)
    noted = start / "environment.json"
    whole = noted.read_text()
    noted.write_text(json.dumps([{**entry, "steps": 5} for entry in json.loads(whole)]))
    with pytest.raises(ValueError, match=r"is not finished \(step 1 of 5\): resume it first .*--start .*step-1$"):
        stage2.run(config, start=start, output=tmp_path / "run")
    noted.write_text(whole)
    manifest = start / "checkpoints" / "step-1" / "tyler.json"
    manifest.rename(tmp_path / "tyler.json")
    with pytest.raises(ValueError, match=r"step-1, is damaged \(it has no manifest\): restore it"):
        stage2.run(config, start=start, output=tmp_path / "run")
    (tmp_path / "tyler.json").rename(manifest)
    with pytest.raises(ValueError, match=r"backbone holds no Stage 1 model"):
        stage2.run(config, start=tmp_path / "backbone", output=tmp_path / "run")
    with pytest.raises(ValueError, match=r"mini-tyler is a stage2 model; Stage 2 starts from a Stage 1 model"):
        stage2.run(load_config("mini"), start="mini-tyler", output=tmp_path / "run")  # found by its name
    backbone, changed = config.backbone, tiny.OPERATORS[:1]
    for update, fault in (
        ({"operators": changed}, rf"conflicts with .*start.*operators is {changed[0].name} \(.*, and there .*, "),
        (
            {"backbone": backbone.model_copy(update={"instruction": "Think."})},
            r"backbone\.instruction is 'Think\.', and",
        ),
        ({"backbone": backbone.model_copy(update={"thinking": True})}, r"backbone\.thinking is True, and there False"),
        ({"backbone": backbone.model_copy(update={"revision": "v2"})}, r"backbone\.revision is 'v2', and there None"),
        (
            {"backbone": backbone.model_copy(update={"id": "mini"})},
            r"trained on backbone '.*backbone' with fingerprint",
        ),
    ):
        with pytest.raises(ValueError, match=fault):
            stage2.run(config.model_copy(update=update), start=start, output=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing is written of a training that is refused"
    model = stage2.run(config, start=start, output=tmp_path / "run")
    loaded = Tyler.from_pretrained(str(tmp_path / "run"))
    assert model.stage == loaded.stage == "stage2"
    assert torch.equal(model.policy.psi, loaded.policy.psi)
    ours, theirs = (lora_layers(one.policy.lora) for one in (model, loaded))
    for name, layer in ours.items():
        assert torch.equal(layer.lora_A["default"].weight, theirs[name].lora_A["default"].weight)


def test_gold_answers_that_cannot_be_read_are_counted() -> None:
    outcomes = [Outcome.GOLD_ERROR, Outcome.WRONG, Outcome.GOLD_ERROR, Outcome.CORRECT]
    rollout = Rollout(PROBLEMS[:2], [], [None, *map(Verdict, outcomes)], torch.zeros(2, 2))
    assert rollout.gold_errors == 2


# --------------------------------------------------------------------- redrawn, masked and unjudged answers


def test_groups_without_spread_are_drawn_again_from_other_problems_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdicts, "grade", lambda *_, **__: Verdict(Outcome.WRONG, "0"))
    config = with_settings(CONFIG, redraws=2)
    trainer = trainer_of(tiny.tyler("qwen3"), config)
    rollout = trainer.roll_out_step(0)
    assert rollout.redrawn == 2 * len(rollout.problems), "no answer is right, so every group is drawn twice more"
    plain = trainer_of(tiny.tyler("qwen3")).roll_out_step(0)
    assert plain.redrawn == 0
    size = config.grpo.group_size
    for place, problem in enumerate(rollout.problems):
        members = rollout.trajectories[place * size : (place + 1) * size]
        assert {tuple(one.prompt_ids) for one in members} == {tuple(trainer.request(problem, Sampling()).prompt_ids)}


def test_answers_that_were_cut_off_teach_nothing_where_the_config_says_so() -> None:
    model, rollout, _ = moved_policy()
    rollout.trajectories[0] = replace(rollout.trajectories[0], finish_reason="eos")
    trainer = trainer_of(model, with_settings(CONFIG, mask_truncated=True))
    weights = trainer.weights(rollout, trainer.actions(rollout))
    cut = [one.truncated for one in rollout.trajectories]
    assert any(cut) and not all(cut)
    assert [bool(row.any()) for row in weights.grpo] == [not one for one in cut]
    plain = trainer_of(model)
    assert all(bool(row.any()) for row in plain.weights(rollout, plain.actions(rollout)).grpo)


@pytest.mark.parametrize("on_fault", ["leave_out", "resample"])
def test_an_answer_without_a_verdict_is_left_out_or_drawn_again(on_fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def slow_at_first(task: str, completion: str, gold: str, **_: object) -> Verdict:
        texts.append(completion)
        return Verdict(Outcome.TIMEOUT) if len(texts) == 1 else verdict(task, completion, gold)

    monkeypatch.setattr(verdicts, "grade", slow_at_first)
    monkeypatch.setattr(verdicts, "cores", lambda: 1)
    rollout = roll_out(tiny.tyler("qwen3"), PROBLEMS[:1], with_settings(CONFIG, on_fault=on_fault), step=0)
    if on_fault == "leave_out":
        assert int(rollout.rewards.isnan().sum()) >= 1 and len(rollout.faults) >= 1
    else:
        assert not bool(rollout.rewards.isnan().any()) and not rollout.faults
        assert texts[0] not in [one.text for one in rollout.trajectories[:1]]
