import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from tyler.config.files import ConfigError, differences, dump, load_config, parse_config
from tyler.config.loops import Stage1Config
from tyler.config.schema import Config
from tyler.tasks import Problem, load_problems
from tyler.tasks.benchmarks import gpqa
from tyler.tasks.decontamination import (
    NearIndex,
    Overlap,
    Selection,
    find_overlap,
    fingerprint,
    load_training,
    read_held_out,
)
from tyler.training import command
from tyler.training.command import development_problems, origin_of


def problems(task: str, *prompts: str) -> list[Problem]:
    return [Problem(f"{task}-{i}", task, prompt, "7") for i, prompt in enumerate(prompts, start=1)]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("How many are left?", "how many  are\nleft"),
        ("Tom's 3 cups.", "Tom\u2019s 3 cups"),
        ("Find $x$ when $2x + 1 = 5$.", r"Find \(x\) when \( 2x+1 = 5 \)"),
        (r"Compute $\dfrac{1}{2}\,x$", r"compute $\frac{1}{2} x$"),
        (r"$\left( 1, 2 \right)$", "(1,2)"),
        ("It has 1,234 rows", "It has 1234 rows"),
        ("Find x, then y; say why!", "find x then y say why"),
        ("\uff11 apple", "1 apple"),
    ],
)
def test_writing_a_problem_in_another_way_does_not_hide_it(text, same):
    assert fingerprint(text) == fingerprint(same)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("2 + 3", "2 - 3"), ("costs 1.5", "costs 15"), ("x^2", "x_2"), ("(2 + 3) * 4", "2 + (3 * 4)"),
        ("the point (1,2)", "the point (12)"), ("x < 3", "x > 3"), (r"$\alpha$", r"$\beta$"),
    ],
)  # fmt: skip
def test_different_problems_stay_different(text, other):
    assert fingerprint(text) != fingerprint(other)


def test_hostile_text_has_a_fingerprint():
    assert len(fingerprint("\ud800" + "\\" * 100_000)) == 32


def test_overlaps_are_found_whatever_their_places():
    training = problems("train", "One.", "Two.", "Three.")
    evaluation = problems("test", "four", "TWO")
    assert find_overlap(training, evaluation) == [Overlap("train-2", "test-2", "test")]
    assert find_overlap(training, []) == find_overlap([], evaluation) == []


def test_questions_are_compared_where_a_prompt_adds_options_or_an_instruction():
    (training,) = problems("train", "What is 2 + 3?")
    evaluated = Problem("test-1", "test", "What is 2 + 3?\n\nGive only the number.", "5", question="What is 2 + 3?")
    assert find_overlap([training], [evaluated]) == [Overlap("train-1", "test-1", "test")]


def refusal(tmp_path: Path, training: list[str], held_out: list[str]) -> str:
    sets = [Selection("jsonl", path=traces(tmp_path / f"{n}.jsonl", *p)) for n, p in (("a", training), ("b", held_out))]
    with pytest.raises(ValueError) as refused:
        load_training(sets[0], sets[1:], "refuse")
    return str(refused.value)


def test_an_overlap_is_refused_by_ids_without_a_word_of_the_problem(tmp_path):
    message = refusal(tmp_path, ["secret one", "two", "secret three"], ["Secret Three", "secret one"])
    assert message.startswith("2 of 3 training problems") and message.endswith(
        "set data.on_overlap=drop to train without these"
    )
    assert ": a-1 = jsonl b-2, a-3 = jsonl b-1; " in message and "secret" not in message


def test_of_many_overlaps_the_first_are_shown(tmp_path):
    same = [f"problem {i}" for i in range(9)]
    assert "9 of 9" in (message := refusal(tmp_path, same, same)) and " a-5 = jsonl b-5 and 4 more;" in message


def test_the_splits_of_the_real_benchmarks_share_no_problem(data_dir):
    train = load_problems("gsm8k", "train", path=data_dir)
    assert find_overlap(train, load_problems("gsm8k", "test", path=data_dir)) == []
    assert len(find_overlap(train, train)) == len(train)


# ------------------------------------------------------------------------------------------------------- of a run


def traces(path: Path, *prompts: str) -> str:
    rows = [{"problem": prompt, "solution": "\\boxed{7}", "answer": "7"} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return traces(tmp_path / "train.jsonl", "One", "Two", "Three"), traces(tmp_path / "test.jsonl", "two.")


def config_of(training: str, held_out: str, **data: object) -> Config:
    settings = {"task": "jsonl", "path": training, "held_out": [{"task": "jsonl", "path": held_out}], **data}
    return parse_config(json.dumps({"data": settings}))


def test_a_run_may_leave_them_out_and_says_how_many(files, caplog):
    caplog.set_level("INFO", "tyler")
    config = config_of(*files, on_overlap="drop")
    kept = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    assert [problem.prompt for problem in kept] == ["One", "Three"]
    assert caplog.messages == [
        "training problems are compared with jsonl (1), mini eval (600)",
        "left out 1 of 3 training problems: held out",
    ]


def test_sets_are_mixed_and_none_of_them_is_held_out(files, tmp_path):
    more = traces(tmp_path / "more.jsonl", "Four", "Five", "Six")
    config = config_of(
        *files, on_overlap="drop", also=[{"task": "jsonl", "path": more, "count": 2}, {"task": "chains", "count": 4}]
    )
    kept = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    assert [problem.id.split("-")[0] for problem in kept] == ["train"] * 2 + ["more"] * 2 + ["chain"] * 4
    config = config_of(*files, on_overlap="drop", also=[{"task": "jsonl", "path": files[1]}])
    kept = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    assert [problem.prompt for problem in kept] == ["One", "Three"]
    config = config_of(*files, also=[{"task": "jsonl", "path": files[0]}])
    with pytest.raises(ValueError, match="the id 'train-1' is in another set of the mixture too; rename one"):
        load_training(config.training_set, config.held_out_sets, config.data.on_overlap)


def mixture(
    tmp_path: Path, weights: tuple[float, float], held_out: tuple[str, ...] = ("None",), seed: int = 0
) -> Config:
    """12 problems of one file and 4 of another."""
    large, small = ([f"{name} {number}" for number in range(count)] for name, count in (("Large", 12), ("Small", 4)))
    more = {"task": "jsonl", "path": traces(tmp_path / "small.jsonl", *small), "weight": weights[1]}
    files = traces(tmp_path / "large.jsonl", *large), traces(tmp_path / "test.jsonl", *held_out)
    return config_of(*files, on_overlap="drop", weight=weights[0], also=[more], seed=seed)


def drawn(config: Config) -> Counter[str]:
    """How often each training problem is among the examples."""
    examples = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    return Counter(problem.id for problem in examples)


@pytest.mark.parametrize(
    ("weights", "held_out", "large", "small"),
    [
        ((1, 1), ("None",), [1] * 8, [2] * 4),
        ((1, 3), ("None",), [1] * 4, [3] * 4),
        ((0.5, 1.5), ("None",), [1] * 4, [3] * 4),
        ((3, 1), ("None",), [1] * 12, [1] * 4),
        ((5, 3), ("None",), [1] * 10, [1, 1, 2, 2]),
        ((1, 1), ("Small 1", "Small 2"), [1] * 7, [3, 4]),
    ],
)
def test_each_set_of_a_mixture_has_its_weights_share_of_the_examples_that_may_be_learned(
    weights, held_out, large, small, tmp_path
):
    counts = drawn(mixture(tmp_path, weights, held_out))
    assert sorted(count for id, count in counts.items() if id.startswith("train")) == large
    assert sorted(count for id, count in counts.items() if id.startswith("small")) == small


def test_a_weighted_draw_follows_from_the_seed_alone_and_a_run_is_held_to_it(tmp_path):
    config = mixture(tmp_path, (1, 1))
    assert drawn(config) == drawn(config) != drawn(mixture(tmp_path, (1, 1), seed=1))
    other = mixture(tmp_path, (1, 3))
    assert differences(dump(config), dump(other), dump(Config()))[0].startswith("data.also was")
    backbone = tiny.build_backbone("llama")
    examples = [command.load_problems(settings) for settings in (config, config, other)]
    origins = [origin_of("", map(Problem.content, problems), backbone) for problems in examples]
    assert origins[0] == origins[1] and origins[1]["the training examples"] != origins[2]["the training examples"]


def test_a_weight_without_an_effect_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"gives .*small\.jsonl 0 of 16 examples, and it has 4 problems; change its w"):
        drawn(mixture(tmp_path, (100, 1)))
    with pytest.raises(ValueError, match=r"gives .*small\.jsonl 6 of 12 examples, and it has 0 problems"):
        drawn(mixture(tmp_path, (1, 1), ("Small 0", "Small 1", "Small 2", "Small 3")))
    for data in (
        {"weight": 1},
        {"also": [{"task": "chains", "weight": 1}]},
        {"weight": 1, "also": [{"task": "chains"}]},
    ):
        with pytest.raises(ConfigError, match="give one to data and to each set in also, or none"):
            parse_config(json.dumps({"data": data}))


def test_problems_set_aside_are_of_the_first_set(tmp_path):
    training = traces(tmp_path / "train.jsonl", *(f"Problem {number}" for number in range(20)))
    data = {"task": "jsonl", "path": training, "also": [{"task": "chains", "count": 50}], "development": {"count": 5}}
    config = parse_config(json.dumps({"data": data, "sft": {"eval_every": 5}}))
    assert config.data.examples is None and config.development_set is not None
    assert {problem.task for problem in config.development_set.load()} == {"jsonl"}
    kept = load_training(config.training_set, config.held_out_sets, "refuse")
    assert len(kept) == 68


def test_a_run_without_a_problem_left_is_refused(files):
    config = config_of(files[1], files[1], on_overlap="drop")
    with pytest.raises(ValueError, match="all 1 training problems are held out"):
        load_training(config.training_set, config.held_out_sets, config.data.on_overlap)


def test_the_evaluation_s_set_is_held_out_unless_others_are_named(files):
    settings = {"data": {"task": "jsonl", "path": files[0]}, "evaluation": {"task": "jsonl", "path": files[1]}}
    config = parse_config(json.dumps(settings))
    with pytest.raises(ValueError, match="held out for evaluation"):
        load_training(config.training_set, config.held_out_sets, "refuse")
    settings["data"]["held_out"] = []  # type: ignore[assignment]
    config = parse_config(json.dumps(settings))
    assert config.held_out_sets == []
    assert len(load_training(config.training_set, config.held_out_sets, "refuse")) == 3


def test_the_development_problems_are_held_out_too(files):
    data = {"task": "jsonl", "path": files[0], "held_out": [], "development": {"path": files[1], "count": None}}
    config = parse_config(json.dumps({"data": data, "stage2": {"eval_every": 5}}))
    with pytest.raises(ValueError, match="train-2 = jsonl dev-1"):
        load_training(config.training_set, config.held_out_sets, "refuse")
    unwatched = parse_config(json.dumps({"data": data}))
    assert unwatched.development_set is None and unwatched.held_out_sets == []


def test_a_set_that_was_named_must_be_readable_and_a_default_one_is_warned_of(files, caplog):
    lost = Selection("jsonl", path="no.jsonl")
    with pytest.raises(ValueError, match=r"'no\.jsonl' is not a file"):
        load_training(Selection("jsonl", path=files[0]), [lost], "refuse")
    default = Selection("jsonl", path="no.jsonl", optional=True)
    assert len(load_training(Selection("jsonl", path=files[0]), [default], "refuse")) == 3
    assert "training problems are not compared with jsonl: task 'jsonl' reads a file, and 'no.jsonl'" in caplog.text


def numbered(path: Path, count: int) -> str:
    return traces(path, *(f"Problem {n}" for n in range(count)))


@pytest.mark.parametrize(("count", "aside"), [(60, 6), (2000, 100), (9, 0)])
def test_a_file_without_development_problems_sets_a_tenth_aside(tmp_path, caplog, count, aside):
    """`--data.task jsonl --data.path FILE` over a preset whose own task has a split to develop with."""
    caplog.set_level("INFO", "tyler")
    config = load_config("mini", ["data.task=jsonl", f"data.path={numbered(tmp_path / 'mine.jsonl', count)}"])
    training = load_training(config.training_set, config.held_out_sets, "refuse")
    development = development_problems(config, config.stage1)
    assert (len(training), len(development)) == (count - aside, aside)
    assert not {problem.id for problem in training} & {problem.id for problem in development}
    assert f"{aside} training problems are set aside as development problems" in caplog.text


def test_a_task_without_the_split_sets_training_problems_aside_too(data_dir):
    config = load_config(
        "mini", ["data.task=gsm8k", f"data.path={data_dir}", "data.count=500", "evaluation.task=gsm8k"]
    )
    training = load_training(config.training_set, config.held_out_sets, "refuse")
    development = development_problems(config, config.stage1)
    assert (len(training), len(development)) == (450, 50)
    assert find_overlap(training, development) == []


def test_problems_that_are_held_out_are_not_developed_with(tmp_path):
    training, held_out = numbered(tmp_path / "mine.jsonl", 100), numbered(tmp_path / "held.jsonl", 50)
    config = config_of(training, held_out, development={"count": 100}, on_overlap="drop")
    config = config.model_copy(update={"stage1": Stage1Config(eval_every=5)})
    development = development_problems(config, config.stage1)
    assert 0 < len(development) < 10
    assert all(int(problem.prompt.split()[1]) >= 50 for problem in development)


def test_a_split_of_the_task_is_found_where_the_training_problems_are(data_dir):
    config = load_config("smollm2-135m", [f"data.path={data_dir / 'mawps_asdiv_train.csv'}"])
    assert len(development_problems(config, config.stage1)) == 100


def test_a_development_set_that_cannot_be_read_is_named_with_its_key(files):
    config = load_config(
        "mini", ["data.task=jsonl", f"data.path={files[0]}", "data.development={path: lost.jsonl, count: null}"]
    )
    with pytest.raises(
        ValueError, match=r"'lost\.jsonl' is not a file.*data\.development\.path.*data\.development=null"
    ):
        development_problems(config, config.stage1)


def test_the_presets_of_the_paper_hold_out_all_five_benchmarks():
    for name in ("paper", "qwen2.5-1.5b", "smollm3-3b", "qwen3-4b"):
        config = load_config(name)
        assert [selection.name for selection in config.held_out_sets] == [
            *("gsm8k test", "math500 test", "gpqa test", "theoremqa test", "humaneval test")
        ]
        assert all(selection.optional for selection in config.held_out_sets)
        assert config.data.on_overlap == "drop", "a user cannot mend OpenR1-Math"


def test_held_out_sets_are_found_beside_the_data_and_the_others_are_named(data_dir, caplog):
    caplog.set_level("INFO", "tyler")
    data = ["data.task=gsm8k", f"data.path={data_dir / 'gsm8k_train.jsonl'}", "data.count=null"]
    config = load_config("paper", data)
    assert len(load_training(config.training_set, config.held_out_sets, "refuse")) == 7473
    compared, missing = caplog.messages
    assert compared == (
        "training problems are compared with gsm8k test (1,319), math500 test (500), theoremqa test (747), "
        "humaneval test (164)"
    )
    assert missing.startswith("training problems are not compared with gpqa test: cannot load GPQA-Diamond")


def test_the_evaluation_s_set_is_held_out_beside_those_that_are_named(files):
    config = load_config("paper", ["evaluation.task=svamp"])
    assert config.held_out_sets[-1] == Selection("svamp", "test", optional=True)
    assert load_config("paper", ["evaluation.task=svamp", "data.held_out=[]"]).held_out_sets == []
    harder = load_config("mini", ["data.held_out=[{task: mini, split: harder}]"]).held_out_sets
    assert [selection.name for selection in harder] == ["mini harder", "mini eval", "mini dev"]
    named = {"held_out": [{"task": "gsm8k", "path": "data"}]}
    config = parse_config(json.dumps({"data": named, "evaluation": {"task": "gsm8k", "split": "test"}}))
    assert [selection.path for selection in config.held_out_sets][:1] == ["data"]
    assert [selection.task for selection in config.held_out_sets].count("gsm8k") == 1, "the Hub is not asked too"
    own = {"task": "jsonl", "path": files[1]}
    other = {"data": {"task": "jsonl", "path": files[0], "held_out": [{"task": "jsonl", "path": "other.jsonl"}]}}
    sets = parse_config(json.dumps({**other, "evaluation": own})).held_out_sets
    assert [selection.path for selection in sets][:2] == ["other.jsonl", files[1]], "another file of the same task"
    config = parse_config(json.dumps({"data": {"held_out": [{"task": "gsm8k"}]}, "evaluation": {"task": "gsm8k"}}))
    assert [selection.name for selection in config.held_out_sets] == ["gsm8k test"]


def test_nothing_of_gpqa_is_shown_when_a_training_problem_is_one_of_it(tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    row = {"Question": "SECRET question", "Correct Answer": "SECRET a", "High-level domain": "Physics"}
    wrong = {f"Incorrect Answer {n}": f"SECRET {n}" for n in (1, 2, 3)}
    (tmp_path / "gpqa_diamond.jsonl").write_text(json.dumps(row | wrong | {"Record ID": "rec1"}) + "\n")
    source = gpqa.TASK.sources["test"]
    monkeypatch.setattr(gpqa, "TASK", replace(gpqa.TASK, sources={"test": replace(source, num_rows=1)}))
    training = traces(tmp_path / "train.jsonl", "SECRET question", "another")
    held_out = [Selection("gpqa", beside=(str(tmp_path),), optional=True)]
    with pytest.raises(ValueError, match="train-1 = gpqa rec1") as refused:
        load_training(Selection("jsonl", path=training), held_out, "refuse")
    assert len(load_training(Selection("jsonl", path=training), held_out, "drop")) == 1
    assert "compared with gpqa test (1)" in caplog.text
    assert "SECRET" not in caplog.text + str(refused.value)
    (tmp_path / "broken.jsonl").write_text(json.dumps(row | wrong) + "\n")
    broken = [Selection("gpqa", path=tmp_path / "broken.jsonl", optional=True)]
    assert len(load_training(Selection("jsonl", path=training), broken, "drop")) == 2
    assert "line 1: field 'Record ID' is missing" in caplog.text
    assert "SECRET" not in caplog.text


def test_the_mini_preset_holds_out_its_evaluation_and_development_problems():
    config = load_config("mini")
    assert [selection.split for selection in config.held_out_sets] == ["eval", "dev"]
    training = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    assert len(training) == 2000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('data.held_out=[{"task": "nope"}]', "data.held_out.0.task: unknown task 'nope'"),
        ('data.held_out=[{"task": "gsm8k", "splt": "test"}]', "no key 'data.held_out.0.splt'; did you mean 'split'"),
        ("data.development.splt=dev", "no key 'data.development.splt'; did you mean 'split'"),
        ("data.on_overlap=ignore", "data.on_overlap = \"ignore\": should be 'refuse' or 'drop'"),
    ],
)
def test_a_set_that_cannot_be_is_refused_by_name(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config("mini", [override])


NEAR = "Natalia sold 48 clips to her friends in April and then she sold half as many clips in May, how many in all?"


@pytest.mark.parametrize(
    ("text", "near"),
    [
        (NEAR.replace("friends", "neighbours"), True),
        (NEAR.replace("how many in all", "how many altogether"), True),
        (NEAR.replace("48", "84"), False),
        (NEAR.replace("half", "twice").replace("sold", "bought").replace("clips", "pens"), False),
        ("Natalia sold 48 clips", False),
        ("", False),
    ],
)
def test_a_problem_is_nearly_another_where_a_word_differs_and_no_number_does(text: str, near: bool) -> None:
    index = NearIndex([(("test-1", "gsm8k"), NEAR), (("test-2", "gsm8k"), "What is 2 + 3?")])
    assert index.nearest(text) == (("test-1", "gsm8k") if near else None)


def test_near_duplicates_are_named_and_left_out_where_overlaps_are_dropped(tmp_path, caplog):
    near = traces(tmp_path / "train.jsonl", NEAR.replace("friends", "neighbours"), "What is 2 + 3?")
    training, held_out = Selection("jsonl", path=near), [Selection("jsonl", path=traces(tmp_path / "test.jsonl", NEAR))]
    assert len(load_training(training, held_out, "refuse")) == 2
    assert (
        "training problems that are nearly held-out ones: 1 (kept; data.on_overlap=drop leaves them out)" in caplog.text
    )
    assert "train-1 ~ jsonl test-1" in caplog.text
    assert [problem.id for problem in load_training(training, held_out, "drop")] == ["train-2"]


def test_the_evaluation_is_looked_for_beside_the_training_file(data_dir: Path) -> None:
    file = data_dir / "mawps_asdiv_train.csv"
    evaluated = "evaluation.task=mawps", "evaluation.split=test"
    config = load_config("mini", ["data.task=mawpsvaried", f"data.path={file}", *evaluated])
    (held,) = [held for held in read_held_out(config.held_out_sets) if held.name == "mawps test"]
    assert held.note == 501


def test_splits_that_are_drawn_alike_are_not_nearly_each_other(caplog: pytest.LogCaptureFixture) -> None:
    load_training(Selection("mini", "train", count=2000), [Selection("mini", "eval")], "refuse")
    assert "nearly" not in caplog.text
