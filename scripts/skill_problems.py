"""Write the problems that the skill of `smollm2-tyler` learns from, as rows of the task `jsonl`: 16,163 by default.

Traces compute digit by digit. Three sets that exist give problems: GSM8K's training file, where its calculations are
simple; varied problems (`mawpsvaried`), more than half of them of two steps or more, because three of four sources have
one; and chains. The rest is made from templates of our own (`skill_templates.txt`: a formula and a text). What is like
a held-out problem of MAWPS is left out.

python scripts/skill_problems.py DATA problems.jsonl
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path

import tyro
from tyro.conf import Positional

from tyler.tasks import load_problems
from tyler.tasks.benchmarks import mawps
from tyler.tasks.benchmarks.mawps import Step
from tyler.tasks.data_files import Row, read_rows
from tyler.tasks.problem import Problem
from tyler.tasks.word_problems import CONTAINMENT, NAMES, SIMILARITY, decimal, template, written

MOST_STEPS = 4
LARGEST = 100_000
LARGEST_OF_OWN = 20_000
_CALCULATION = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
_OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}

_TEMPLATES = Path(__file__).with_name("skill_templates.txt").read_text("utf-8").splitlines()
_BOYS, _GIRLS = map(sorted, NAMES)
_WORDS = {
    "item": "pencils marbles stickers stamps coins buttons beads shells crayons balloons cards books toys rocks "
    "bracelets candles ribbons postcards erasers magnets badges seeds blocks puzzles tokens",
    "fruit": "apples oranges peaches plums pears lemons cherries tomatoes carrots strawberries mangoes pumpkins",
    "animal": "ducks sheep goats horses cows geese rabbits pigs frogs pigeons butterflies ants bees",
    "place": "park barn pond zoo fair market garden field museum library",
    "tool": "lamp jacket kite scooter helmet tent guitar camera clock chair skateboard backpack radio printer",
    "vehicle": "bus train van boat plane truck",
    "color": "red blue green yellow black orange purple brown",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday",
    "item1": "notebook sandwich toy_car flower_pot T-shirt ice_cream movie_ticket plant book cap",
}
Numbers = Mapping[str, Fraction]


def compute(node: ast.expr, numbers: Numbers, steps: list[Step]) -> Fraction:
    """The value of a formula of numbers and names; its operations are added to the steps. ValueError for others."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.Name) and node.id in numbers:
        return numbers[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = compute(node.left, numbers, steps), compute(node.right, numbers, steps)
        steps.append(mawps.step(left, _OPERATIONS[type(node.op)], right))
        return steps[-1].result
    raise ValueError("not arithmetic")


# --- GSM8K ------------------------------------------------------------------------------------------------------------


def simple(row: Row) -> Problem | None:
    """A problem of GSM8K, one operation a step; None where it is long or a result is not an exact decimal."""
    solution, _, gold = row.text("answer").rpartition("#### ")
    steps = list[Step]()
    try:
        for formula, _ in _CALCULATION.findall(solution):
            compute(ast.parse(formula.strip(), mode="eval").body, {}, steps)
        answer = Fraction(gold.replace(",", ""))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
    if not 0 < len(steps) <= MOST_STEPS or not all(map(fits, steps)) or steps[-1].result != answer:
        return None
    return mawps.solved(f"train-{row.number}", "gsm8k", row.text("question"), steps, answer, worked=True)


def fits(step: Step) -> bool:
    """Whether the numbers of a step are such as word problems have."""
    return all(0 < number <= LARGEST and short(number) for number in (step.left, step.right, step.result))


def short(number: Fraction) -> bool:
    """Whether two decimals hold it."""
    shown = decimal(number)
    return shown is not None and len(shown.partition(".")[2]) <= 2


# --- templates of our own ---------------------------------------------------------------------------------------------


def own(rng: random.Random, held_out: list[frozenset[str]]) -> Iterator[Problem]:
    """Problems without end from the templates, no text twice and none like a held-out one."""
    seen = set[str]()
    while True:
        formula, form = rng.choice(_TEMPLATES).split(" | ", 1)
        numbers, steps = drawn(formula, form, rng)
        text = filled(form, numbers, rng)
        if text not in seen and not like_any(frozenset(template(text).split()), held_out):
            yield mawps.solved(f"own-{len(seen)}", "own", text, steps, steps[-1].result, worked=True)
        seen.add(text)


def like_any(words: frozenset[str], others: list[frozenset[str]]) -> bool:
    """Whether a template is like one of others, by `tyler.tasks.word_problems.alike`'s thresholds."""
    for other in others:
        shared = len(words & other)
        if shared >= SIMILARITY * (len(words) + len(other) - shared):
            return True
        if shared >= CONTAINMENT * min(len(words), len(other)):
            return True
    return False


def drawn(formula: str, form: str, rng: random.Random) -> tuple[Numbers, list[Step]]:
    """Numbers for a template, and its steps, whose results are whole (or of money) and at least 2."""
    tree = ast.parse(formula, mode="eval").body
    small, money = factors(tree), "$" in form and formula in ("a-b", "a+b")
    names = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(named(form)))
    while True:
        rng.random()  # means nothing: with it, the problems are those that were learned from
        scale = size(rng)
        numbers = {name: Fraction(number(formula, name in small, scale, rng)) for name in names}
        if money and rng.random() < 0.2:
            numbers = {name: value + Fraction(rng.randint(1, 19) * 5, 100) for name, value in numbers.items()}
        steps = list[Step]()
        compute(tree, numbers, steps)
        if all(2 <= step.result <= LARGEST_OF_OWN and (money or step.result.denominator == 1) for step in steps):
            return numbers, steps


def named(form: str) -> list[str]:
    """The numbers of a text: one that the formula does not have is there to be passed over."""
    return re.findall(r"\{([abcd])\}", form)


def factors(node: ast.expr, inside: bool = False) -> set[str]:
    """The names in a formula that something is multiplied with or divided by, which are small numbers."""
    if isinstance(node, ast.Name):
        return {node.id} if inside else set()
    assert isinstance(node, ast.BinOp)
    product = isinstance(node.op, ast.Mult)
    return factors(node.left, product) | factors(node.right, product or isinstance(node.op, ast.Div))


def number(formula: str, factor: bool, scale: int, rng: random.Random) -> int:
    """One number of a problem whose numbers are of about this scale."""
    if factor:
        return rng.randint(2, 12) if rng.random() < 0.75 else rng.randint(6, 40)
    if "*" in formula or "/" in formula or formula.startswith("("):
        return rng.randint(2, max(12, min(scale, 300))) if rng.random() < 0.8 else size(rng)
    return rng.randint(max(2, scale // 4), scale * 2)


def size(rng: random.Random) -> int:
    """A number of one to four digits, mostly two."""
    share = rng.random()
    for below, (low, high) in {0.35: (2, 20), 0.8: (10, 99), 0.95: (100, 999)}.items():
        if share < below:
            return rng.randint(low, high)
    return rng.randint(1000, 9999)


def filled(form: str, numbers: Numbers, rng: random.Random) -> str:
    """A template with words and these numbers in the places of its names."""
    his = rng.random() < 0.5
    words = {"N": rng.choice(_BOYS if his else _GIRLS), "M": rng.choice(_GIRLS if rng.random() < 0.5 else _BOYS)}
    words = {name: word.title() for name, word in words.items()}
    words |= dict(zip(("he", "He", "his", "him"), ("he He his him" if his else "she She her her").split(), strict=True))
    for kind, some in _WORDS.items():
        words[kind], words[f"{kind}2"] = (word.replace("_", " ") for word in rng.sample(some.split(), 2))
    for name, value in numbers.items():
        words[name] = written(value) if value.denominator == 1 else f"{float(value):.2f}"
    text = re.sub(r"\{(\w+)\}", lambda name: words[name[1]], form)
    return re.sub(r"(?<=[.?!] )([a-z])", lambda first: first[1].upper(), text[0].upper() + text[1:])


def main(
    data: Positional[Path],
    output: Positional[Path],
    *,
    steps: tuple[int, int] = (3300, 4000),
    templates: int = 3600,
    chains: int = 500,
) -> None:
    """Write the problems.

    Args:
        data: The folder with `mawps_asdiv_train.csv` and `gsm8k_train.jsonl`.
        output: The file to write.
        steps: How many varied problems of one step, and of more.
        templates: How many from templates of our own.
        chains: How many chains of arithmetic.
    """
    simple_ones = [problem for row in read_rows(data / "gsm8k_train.jsonl") if (problem := simple(row)) is not None]
    chosen = random.Random(5).sample(simple_ones, len(simple_ones))
    varied = load_problems("mawpsvaried", path=data, count=30_000, seed=5)
    chosen += [problem for problem in varied if problem.level == 1][: steps[0]]
    chosen += [problem for problem in varied if (problem.level or 0) > 1][: steps[1]]
    held_out = [problem for split in ("dev", "test") for problem in load_problems("mawps", split, path=data)]
    templates_held_out = [frozenset(template(problem.prompt).split()) for problem in held_out]
    chosen += islice(own(random.Random(1), templates_held_out), templates)
    chosen += load_problems("chains", count=chains, seed=9)
    with output.open("w", encoding="utf-8") as file:
        for problem in chosen:
            row = {"problem": problem.prompt, "solution": problem.solution, "answer": problem.answer}
            file.write(json.dumps(row) + "\n")
    print(f"{output}: {len(chosen):,} problems")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
