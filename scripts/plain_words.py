"""Plain words: refuse phrases that a reader has to translate, and names that say nothing.

    python scripts/plain_words.py             every line that breaks a rule; exit status 1 if there is one
    python scripts/plain_words.py --list      rewrite the list of what does not pass yet

Phrases are looked for in pages, docstrings, comments and messages, names in what Python code defines. `plain_words.txt`
lists the files and folders that are not held to a rule yet; it may only get shorter.
"""

import argparse
import ast
import re
import subprocess
import sys
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PENDING = Path(__file__).with_suffix(".txt")
THEMSELVES = ("scripts/plain_words.py", "scripts/plain_words.txt", "tests/test_house.py")

PHRASES = {
    r"\b[Ww]ho(m)?ever\b": "say who, or 'anyone who'",
    r"\b([Nn]obody|[Ss]omebody)\b": "say who: a caller, a reader, another process",
    r"\bleaves? (\S+ ){1,4}away\b": "omit",
    r"\b(is|are|was|were) none\b": "'is not one', or 'there is no ...'",
    r"(?<!here )\b(is|are) no (?!longer\b|more\b|less\b|fewer\b|other\b|such\b|\w+er than\b)[a-z]\w*": "'is not a ...'",
    r"\bcannot be meant\b": "is invalid",
    r"\bin \w+ dresses\b": "in ... formats",
    r"\bleans? on (what|whatever)\b": "depends on",
    r"\bas it comes\b": "unmodified, or as it arrives",
    r"\bis (whole|complete) or (is )?not there\b": "is written atomically",
    r"\bthe way on\b": "what to do next",
    r"\bwho asks\b": "the caller",
    r"\bis told nothing\b": "say what is cleared or omitted",
}
"""By pattern: what to write instead."""
NAMES = {
    **dict.fromkeys(("found", "asked", "made", "told", "said"), "name the thing, not the act that gave it"),
    **dict.fromkeys(("one", "ones"), "name what it is one of"),
    **dict.fromkeys(("place", "places"), "index, position, location: whichever it is"),
}


class Fault(NamedTuple):
    """A line that breaks a rule, `phrases` or `names`."""

    rule: str
    path: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.instead}"


def phrases(path: str, text: str) -> Iterator[Fault]:
    """Phrases that a reader has to translate, also where one is broken over two lines."""
    starts, flat = flattened(text)
    for pattern, instead in PHRASES.items():
        for match in re.finditer(pattern, flat):
            yield Fault("phrases", path, bisect(starts, match.start()), match[0], instead)


def flattened(text: str) -> tuple[list[int], str]:
    """The text in one line with single spaces and without the marks of comments; and where each line begins in it."""
    starts, flat = [], ""
    for line in text.split("\n"):
        starts.append(len(flat))
        if words := line.strip().removeprefix("# ").split():
            flat += " ".join(words) + " "
    return starts, flat


def names(path: str, text: str) -> Iterator[Fault]:
    """Names that Python code defines and that say nothing."""
    for node in ast.walk(ast.parse(text)):
        name = defined(node)
        if name in NAMES:
            yield Fault("names", path, node.lineno, name, NAMES[name])  # type: ignore[attr-defined]


def defined(node: ast.AST) -> str:
    """The name that a node defines; empty where it defines none."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
    return ""


def faults(root: Path = ROOT) -> Iterator[Fault]:
    """All of the repository's pages and code."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=root, capture_output=True, text=True, check=True)
    for path in sorted(set(listed.stdout.splitlines()) - set(THEMSELVES)):
        if (root / path).is_file():
            text = (root / path).read_text(encoding="utf-8")
            yield from phrases(path, text)
            if path.endswith(".py"):
                yield from names(path, text)


def entry(fault: Fault) -> str:
    """The line of `plain_words.txt` that excuses a fault: of phrases the file, of names the whole folder."""
    return f"phrases {fault.path}" if fault.rule == "phrases" else f"names {Path(fault.path).parent}/"


def pending() -> set[str]:
    """What is not held to a rule yet."""
    lines = PENDING.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if not line.startswith("#")}


def rewrite(entries: set[str]) -> None:
    """Write the list anew."""
    title = f"# What is not held to a rule of {Path(__file__).name} yet. This list may only get shorter."
    PENDING.write_text("\n".join([title, *sorted(entries)]) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="rewrite the list of what does not pass yet")
    arguments = parser.parse_args()
    by_entry = defaultdict(list)
    for fault in faults():
        by_entry[entry(fault)].append(fault)
    if arguments.list:
        rewrite(set(by_entry))
        return 0
    excused = pending()
    if passing := excused - by_entry.keys():
        print(f"{len(passing)} lines of {PENDING.name} are no longer needed: --list removes them", file=sys.stderr)
    open_faults = [fault for line, some in by_entry.items() if line not in excused for fault in some]
    print(*open_faults, sep="\n", end="\n" if open_faults else "")
    return 1 if open_faults else 0


if __name__ == "__main__":
    sys.exit(main())
