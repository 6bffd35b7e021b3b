"""Write the measured half of docs/boundaries.md: counts, errors, held tokens and marked examples, from real data.

    python scripts/boundary_counts.py --data-dir PATH

PATH holds gsm8k_train.jsonl, gsm8k_test.jsonl, math500_test.jsonl, HumanEval.jsonl.gz and tokenizers/qwen2.5.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from tyler.boundaries.placement import RULES, BoundaryScanner, find_boundaries
from tyler.tasks import load_problems

PAGE = Path(__file__).parent.parent / "docs" / "boundaries.md"
BEGIN = "<!-- what follows is written by scripts/boundary_counts.py -->\n"
MARKS = {"answer_start": "⟨g⟩", "step": "⟨s⟩", "structure": "⟨p⟩"}

PUBLISHED, TRACES, HELD_OUT = "GSM8K train, as published", "GSM8K train, as traces", "GSM8K test, as traces"
MATH, CODE = "MATH-500", "HumanEval, fenced"

EXAMPLES = (
    (PUBLISHED, 5069), (PUBLISHED, 2799), (PUBLISHED, 3172), (PUBLISHED, 2550), (PUBLISHED, 4810), (PUBLISHED, 1948),
    (TRACES, 2566), (TRACES, 5710), (TRACES, 7469),
    (MATH, 58), (MATH, 79), (MATH, 161), (MATH, 191), (MATH, 203), (MATH, 225), (MATH, 262), (MATH, 300), (MATH, 380),
    (MATH, 488), (CODE, 23),
)  # fmt: skip
"""The examples shown: a set of texts and a line of it, from 0. All three sources are under the MIT licence."""

SHOWN = 480
"""Characters of an example that are shown."""

_SPANS = (
    r"\[asy\].*?\[/asy\]|\\begin\{((?:align|eqnarray|equation|gather|multline)\*?)\}.*?\\end\{\1\}"
    r"|\\\[.*?\\\]|\\\(.*?\\\)|\$\$.*?\$\$|%s|\\."
)
BALANCED = re.compile(_SPANS % r"\$(?:\\.|[^\\$])*\$", re.DOTALL)
PANDOC = re.compile(_SPANS % r"\$(?!\s)(?:\\.|[^\\\n]|\n(?!\s*\n))*?(?<!\s)\$(?!\d)", re.DOTALL)


def texts(data: Path) -> dict[str, list[str]]:
    """The answers y that are counted, by name."""
    train, test = data / "gsm8k_train.jsonl", data / "gsm8k_test.jsonl"
    with gzip.open(data / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        code = [json.loads(line) for line in lines]
    return {
        PUBLISHED: [row["answer"] for row in rows(train)],
        TRACES: [problem.solution or "" for problem in load_problems("gsm8k", "train", path=train)],
        HELD_OUT: [problem.solution or "" for problem in load_problems("gsm8k", "test", path=test)],
        MATH: [row["solution"] for row in rows(data / "math500_test.jsonl")],
        CODE: [f"```python\n{row['prompt']}{row['canonical_solution']}```" for row in code],
    }


def rows(path: Path) -> list[dict[str, str]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def counted(name: str, answers: list[str]) -> str:
    """A line of the table of counts."""
    counts = Counter(boundary.rule for text in answers for boundary in find_boundaries(text))
    numbers = [f"{counts[rule]:,} ({counts[rule] / len(answers):.2f})" for rule in RULES]
    return f"| {name} | {len(answers):,} | {' | '.join(numbers)} |"


def structures(text: str) -> set[int]:
    """Where our rule finds a structure."""
    return {boundary.position for boundary in find_boundaries(text, ["structure"])}


def nothing(text: str) -> set[int]:
    """The truth about GSM8K as published, where every `$` is an amount of money."""
    return set()


def box(text: str) -> set[int]:
    """The truth about GSM8K traces: only the last paragraph holds a formula."""
    return {text.rindex(r"$\boxed")}


def mathematics(text: str) -> set[int]:
    """The truth about MATH: delimiters are balanced and a `$` that is no delimiter is escaped."""
    return openings(BALANCED, text)


def pandoc(text: str) -> set[int]:
    """The reference with unbounded lookahead: `$` pairs up by pandoc's rule, within a paragraph."""
    return openings(PANDOC, text)


def openings(pattern: re.Pattern[str], text: str) -> set[int]:
    """Where the formulas and code blocks of a text start, escaped characters left out."""
    return {found.start() for found in pattern.finditer(text) if len(found[0]) > 2}


def errors(name: str, answers: list[str], truth: Callable[[str], set[int]]) -> str:
    """A line of the table of errors."""
    cells = []
    for rule in (structures, pandoc):
        found = [(rule(text), truth(text)) for text in answers]
        cells += [
            f"{sum(len(got - true) for got, true in found):,}",
            f"{sum(len(true - got) for got, true in found):,}",
        ]
    dollars, true = sum(text.count("$") for text in answers), sum(len(truth(text)) for text in answers)
    return f"| {name} | {dollars:,} | {true:,} | {' | '.join(cells)} |"


def held(name: str, answers: list[str], decode: Callable[[str], list[str]]) -> str:
    """A line of the table of held tokens: how many tokens a router holds after each one."""
    waiting: Counter[int] = Counter()
    for text in answers:
        scanner, ends, committed = BoundaryScanner(), [0], 0
        for piece in decode(text):
            scanner.feed(piece)
            ends.append(ends[-1] + len(piece))
            while committed + 1 < len(ends) and ends[committed + 1] <= scanner.settled:
                committed += 1
            waiting[len(ends) - 1 - committed] += 1
    total = waiting.total()
    shares = [sum(count for size, count in waiting.items() if size > most) / total for most in (0, 1, 4, 8)]
    return f"| {name} | {total:,} | {' | '.join(f'{share:.2%}' for share in shares)} | {max(waiting)} |"


def pieces(data: Path) -> Callable[[str], list[str]]:
    """How a text arrives, token by token, from the Qwen2.5 tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data / "tokenizers" / "qwen2.5")

    def split(text: str) -> list[str]:
        spans = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        starts = [start for start, _ in spans] + [len(text)]
        return [text[start:end] for start, end in pairwise(starts)]

    return split


def marked(text: str) -> str:
    """The text with a mark at every boundary, cut after SHOWN characters."""
    shown, last = "", 0
    for boundary in find_boundaries(text):
        if boundary.position < SHOWN:
            shown += text[last : boundary.position] + MARKS[boundary.rule]
            last = boundary.position
    return shown + text[last:SHOWN] + (" [...]" if len(text) > SHOWN else "")


def table(head: str, lines: Iterable[str]) -> str:
    """A markdown table; the first column is text, the others are numbers."""
    return "\n".join([head, "|---|" + "---:|" * (head.count("|") - 2), *lines])


def measured(data: Path) -> str:
    """Everything that is written below BEGIN."""
    sets = texts(data)
    truths = {PUBLISHED: nothing, TRACES: box, HELD_OUT: box, MATH: mathematics}
    split = pieces(data)
    return "\n\n".join(
        [
            "## Counts\n\nNumber of boundaries (and mean per text).",
            table(f"| texts | number | {' | '.join(RULES)} |", (counted(*item) for item in sets.items())),
            ERRORS,
            table(
                "| texts | `$` signs | true openings | false | missed | reference: false | reference: missed |",
                (errors(name, sets[name], truth) for name, truth in truths.items()),
            ),
            HELD,
            table(
                "| texts | tokens | any held | more than 1 | more than 4 | more than 8 | most |",
                (held(name, sets[name], split) for name in (HELD_OUT, MATH, CODE)),
            ),
            f'## Examples\n\n<details markdown="1"><summary>{len(EXAMPLES)} texts with their boundaries</summary>',
            f"{', '.join(f'{mark} is {rule}' for rule, mark in MARKS.items())}.",
            *(f"{name}, line {line + 1}:\n\n~~~~text\n{marked(sets[name][line])}\n~~~~" for name, line in EXAMPLES),
            "</details>",
        ]
    )


ERRORS = """\
## Errors of `structure`

True openings are known from the texts: GSM8K as published holds no formula, a GSM8K trace only the box of its last
paragraph, and MATH escapes every `$` that opens nothing. The reference reads the whole text and pairs `$` by pandoc's
rule."""

HELD = """\
## Tokens held while undecided

After each token of Qwen2.5, how often a router has to hold tokens that it cannot commit yet, and the most at once."""


def page(text: str, data: Path) -> str:
    """The page `text` with its measured half made new."""
    return text.partition(BEGIN)[0] + BEGIN + "\n" + measured(data) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    folder = parser.parse_args().data_dir
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), folder), encoding="utf-8")
    print(f"wrote {PAGE}")
