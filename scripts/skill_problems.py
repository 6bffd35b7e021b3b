"""Write the problems that the skill of `smollm2-tyler` learned from last, 16,163 rows of the task `jsonl`.

Traces compute digit by digit. GSM8K's training file gives those whose calculations are simple, `mawpsvaried` as many as
are wanted of one step and of more, because three of four of its sources have one, and `chains` some. The rest is made
from templates of our own (`skill_templates.txt`: a formula and a text), but for what is like a held-out problem.

python scripts/skill_problems.py DATA problems.jsonl
"""

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
from tyler.tasks.word_problems import NAMES, alike, template, written

ONE_STEP, MORE_STEPS, OWN, CHAINS = 3300, 4000, 3600, 500
MOST_STEPS, LARGEST, LARGEST_OF_OWN = 4, 100_000, 20_000
SIZES = ((0.35, (2, 20)), (0.8, (10, 99)), (0.95, (100, 999)), (1.0, (1000, 9999)))
"""Where numbers of our own are drawn from, by the share of draws up to which they are."""
TEMPLATES = Path(__file__).with_name("skill_templates.txt").read_text("utf-8").splitlines()
WORDS = {
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
_BOYS, _GIRLS = map(sorted, NAMES)
_CALCULATION = re.compile(r"<<([^<>=]+)=[^<>=]+>>")
_OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
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


def simple(row: Row) -> Problem | None:
    """A problem of GSM8K, one operation a step; None where it is long or a number has more than two decimals."""
    solution, _, gold = row.text("answer").rpartition("#### ")
    steps = list[Step]()
    try:
        for formula in _CALCULATION.findall(solution):
            compute(ast.parse(formula.strip(), mode="eval").body, {}, steps)
        answer = Fraction(gold.replace(",", ""))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
    numbers = [number for step in steps for number in (step.left, step.right, step.result)]
    fit = all(0 < number <= LARGEST and (100 * number).denominator == 1 for number in numbers)
    if not fit or not 0 < len(steps) <= MOST_STEPS or steps[-1].result != answer:
        return None
    return mawps.solved(f"train-{row.number}", "gsm8k", row.text("question"), steps, answer, worked=True)


def own(rng: random.Random, held_out: list[str]) -> Iterator[Problem]:
    """Problems without end from the templates, no text twice and none like a problem of the held-out templates."""
    seen = set[str]()
    while True:
        formula, form = rng.choice(TEMPLATES).split(" | ", 1)
        numbers, steps = drawn(formula, form, rng)
        text = filled(form, numbers, rng)
        if text not in seen and not any(alike([template(text), other]) for other in held_out):
            yield mawps.solved(f"own-{len(seen)}", "own", text, steps, steps[-1].result, worked=True)
        seen.add(text)


def drawn(formula: str, form: str, rng: random.Random) -> tuple[Numbers, list[Step]]:
    """Numbers for a template, and its steps, whose results are whole (or of money) and at least 2."""
    tree = ast.parse(formula, mode="eval").body
    small, money = factors(tree), "$" in form and formula in ("a-b", "a+b")
    names = sorted({*re.findall("[abcd]", formula), *re.findall(r"\{([abcd])\}", form)})
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
    return rng.randint(*next(span for most, span in SIZES if share < most))


def filled(form: str, numbers: Numbers, rng: random.Random) -> str:
    """A template with words and these numbers in the places of its names."""
    his = rng.random() < 0.5
    words = {"N": rng.choice(_BOYS if his else _GIRLS), "M": rng.choice(_GIRLS if rng.random() < 0.5 else _BOYS)}
    words = {name: word.title() for name, word in words.items()}
    words |= dict(zip(("he", "He", "his", "him"), ("he He his him" if his else "she She her her").split(), strict=True))
    for kind, some in WORDS.items():
        words[kind], words[f"{kind}2"] = (word.replace("_", " ") for word in rng.sample(some.split(), 2))
    for name, value in numbers.items():
        words[name] = written(value) if value.denominator == 1 else f"{float(value):.2f}"
    text = re.sub(r"\{(\w+)\}", lambda name: words[name[1]], form)
    return re.sub(r"(?<=[.?!] )([a-z])", lambda first: first[1].upper(), text[0].upper() + text[1:])


def main(data: Positional[Path], output: Positional[Path]) -> None:
    """Write the problems from `mawps_asdiv_train.csv` and `gsm8k_train.jsonl`, which are in the folder `data`."""
    simple_ones = [problem for row in read_rows(data / "gsm8k_train.jsonl") if (problem := simple(row)) is not None]
    chosen = random.Random(5).sample(simple_ones, len(simple_ones))
    varied = load_problems("mawpsvaried", path=data, count=30_000, seed=5)
    chosen += [problem for problem in varied if problem.level == 1][:ONE_STEP]
    chosen += [problem for problem in varied if problem.level != 1][:MORE_STEPS]
    held_out = [problem for split in ("dev", "test") for problem in load_problems("mawps", split, path=data)]
    chosen += islice(own(random.Random(1), [template(problem.prompt) for problem in held_out]), OWN)
    chosen += load_problems("chains", count=CHAINS, seed=9)
    rows = [{"problem": each.prompt, "solution": each.solution, "answer": each.answer} for each in chosen]
    output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{output}: {len(rows):,} problems")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
