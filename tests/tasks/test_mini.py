"""The mini world: reproducible, disjoint splits, right answers; a lossless tokenizer; a small backbone."""

import re
import string
import time
from importlib.resources import files
from pathlib import Path

import pytest

from tyler.tasks.mini import FAMILIES, SPLITS, corpus, equal, load, world
from tyler.tasks.mini.families import LAWS, THEOREMS
from tyler.tasks.mini.world import PER_BUCKET, bucket
from tyler.tasks.problem import Problem

ASSETS = Path(str(files("tyler") / "assets" / "mini"))
MAX_SHIPPED_BYTES = 8 * 2**20
FIRST_ID = "arithmetic-1-c2e21d63badd"


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(ASSETS)


def _boxed(text: str) -> str | None:
    boxes = re.findall(r"\\boxed\{([^}]*)\}", text)
    return boxes[-1] if boxes else None


def drawn(split: str, count: int, families: tuple[str, ...] = tuple(FAMILIES), levels: tuple[int, ...] = (1, 2, 3)):
    """Problems of some families and levels of a split."""
    return list(world._generated(split, count, 0, tuple((name, level) for level in levels for name in families)))


def test_the_same_arguments_give_the_same_problems():
    first = load("eval", count=50)
    world._generated.cache_clear()
    assert load("eval", count=50) == first != load("eval", count=50, seed=1)
    assert list(corpus(3, 20)) == list(corpus(3, 20))


def test_a_known_problem_comes_out_of_the_default_seed():
    first = load("eval", count=1)[0]
    assert first.id == FIRST_ID, "the drawing order changed: published numbers on `eval` no longer compare"


def base(split: str) -> str:
    """The split whose buckets a split draws from."""
    return split.partition("-")[0]


@pytest.mark.parametrize("count", [200, pytest.param(1500, marks=pytest.mark.slow)])
def test_no_split_shares_a_problem_with_another_or_with_the_corpus(count):
    texts = {split: {p.prompt for p in load(split, count=count)} for split in SPLITS}
    texts["corpus"] |= {example.prompt for example in corpus(0, 5 * count)}
    for split, drawn in texts.items():
        assert all(bucket(text) in SPLITS[base(split)].buckets for text in drawn), "buckets keep splits apart"
    for split in texts:
        for other in texts:
            assert base(split) == base(other) or not texts[split] & texts[other], f"{split} and {other} share problems"
    assert not texts["dev"] & texts["dev-harder"]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("count", [10**6, 99_999_999])
def test_more_problems_than_there_are_are_refused_at_once_with_the_largest_number(split, count):
    largest = len(SPLITS[split].levels) * len(SPLITS[split].families) * len(SPLITS[split].buckets) * PER_BUCKET
    started = time.process_time()
    with pytest.raises(ValueError, match=f"{count:,} problems of '{split}' .* at most {largest:,} are made"):
        load(split, count=count)
    assert time.process_time() - started < 1


def test_a_family_and_level_with_the_fewest_problems_has_as_many_as_are_promised():
    promised = len(SPLITS["eval"].buckets) * PER_BUCKET
    assert len({problem.id for problem in drawn("eval", promised, ("theorems",), (1,))}) == promised


def test_every_split_owns_its_buckets_alone():
    owned = [b for name, split in SPLITS.items() if name == base(name) for b in split.buckets]
    assert sorted(owned) == list(range(100))
    assert all(split.buckets == SPLITS[base(name)].buckets for name, split in SPLITS.items())


def test_default_sizes_families_and_levels_are_balanced():
    problems = load("eval")
    assert len(problems) == 600 == len({p.prompt for p in problems}) == len({p.id for p in problems})
    assert all(sum(p.family == name for p in problems) == 120 for name in FAMILIES)
    assert {p.level for p in problems} == {1, 2, 3}
    assert {p.level for p in load("harder")} == {4, 5}
    assert len(load("harder")) >= 250


def test_an_unknown_split_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"'test'.*eval, dev, harder, train, corpus"):
        load("test")


def test_every_solution_boxes_its_gold_answer():
    for problem in load("train", count=1000) + load("harder", count=300):
        assert _boxed(problem.solution) == problem.answer


def test_every_written_equation_holds():
    for problem in drawn("train", 600, ("arithmetic", "science", "programs")):
        for a, operator, b, c in re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", problem.solution):
            expected = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator]
            assert expected == int(c), problem.solution


def _run(problem: Problem) -> str:
    printed: list[object] = []
    exec(problem.prompt.split("```")[1], {"print": printed.append, "range": range})
    return str(printed[0])


def test_programs_print_what_python_prints():
    for problem in drawn("train", 300, ("programs",)) + drawn("harder", 100, ("programs",), (4, 5)):
        assert _run(problem) == problem.answer


def _holds(equation: str, value: int) -> bool:
    multiplied = re.sub(r"(\d)(?=[xyzn(])", r"\1 * ", equation)
    spelled = re.sub(r"[xyzn]", f"({value})", multiplied)
    left, right = spelled.split(" = ")
    return eval(left, {}) == eval(right, {})


def test_algebra_answers_satisfy_the_question_and_every_line():
    for problem in drawn("train", 300, ("algebra",)) + drawn("harder", 100, ("algebra",), (4, 5)):
        equations = [e for e in re.findall(r"\$([^$]*=[^$]*)\$", problem.prompt + problem.solution)]
        assert len(equations) >= 3
        assert all(_holds(equation, int(problem.answer)) for equation in equations), problem


def test_theorem_answers_follow_from_the_named_rules():
    for problem in drawn("train", 300, ("theorems",)):
        value = int(re.search(r"\d+", problem.prompt).group())
        names = [name for name in re.findall(r"[A-Za-z]+", problem.prompt) if name in THEOREMS]
        for name in names:
            value = THEOREMS[name][0](value)
        assert str(value) == problem.answer


def _quantity(goal: str, given: dict[str, int]) -> int:
    if goal in given:
        return given[goal]
    return _quantity(LAWS[goal][0], given) * _quantity(LAWS[goal][1], given)


def _within(span: str, value: int) -> bool:
    low, _, high = span.removesuffix("+").partition("-")
    return int(low) <= value <= (int(high) if high else value)


def test_the_right_option_follows_from_the_laws_and_only_one_option_does():
    for problem in drawn("train", 300, ("science",)):
        facts = problem.prompt.split(" has ")[1].split(". ")[0].split(", ")
        given = {fact.rsplit(" ", 1)[0]: int(fact.rsplit(" ", 1)[1]) for fact in facts}
        goal = next(name for name in LAWS if f" {name}" in problem.prompt.split(". ", 1)[1])
        value = _quantity(goal, given) + given.get(f"extra {goal}", 0)
        options = dict(re.findall(r"([A-D])\) ([0-9+-]+)", problem.prompt))
        assert [letter for letter, span in options.items() if _within(span, value)] == [problem.answer]
        assert len(options) == 4


def test_letters_are_spread_evenly_so_that_guessing_gives_a_quarter():
    letters = [p.answer for p in drawn("eval", 600, ("science",))]
    assert all(110 < letters.count(letter) < 190 for letter in "ABCD")


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("12", "12", True),
        (" 012 ", "12", True),
        ("-3", "3", False),
        ("B", "B", True),
        ("b", "B", False),
        ("1.0", "1", False),
    ],
)
def test_answers_are_equal_by_value_or_by_text(answer, gold, same):
    assert equal(answer, gold) is same


def test_the_tokenizer_gives_back_every_text(tokenizer):
    texts = [text for p in load("train", count=300) for text in (p.prompt, p.solution)]
    texts += [e.completion for e in corpus(5, 300)]
    texts += [string.printable, " two  spaces\t\n\n\nünïcode 日本 \\frac{1}{2} 3.14 ", ""]
    for text in texts:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_the_chat_template_ends_where_the_answer_starts(tokenizer):
    messages = [{"role": "user", "content": "Solve $2x = 4$."}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>Solve $2x = 4$.<|end|><|assistant|>"
    assert tokenizer.eos_token == "<|end|>" and tokenizer.pad_token == "<|pad|>"


def test_the_shipped_backbone_is_small_and_never_pickled():
    assert sum(file.stat().st_size for file in ASSETS.iterdir()) <= MAX_SHIPPED_BYTES
    assert {file.suffix for file in ASSETS.iterdir()} <= {".json", ".safetensors", ".jinja"}
