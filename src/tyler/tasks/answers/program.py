"""The program of a completion: the asked function with the helpers it needs. Text is only matched, never compiled."""

import re
import textwrap
from itertools import takewhile

_FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<marks>```+|~~~+)[ \t]*(?P<language>[\w+.-]*)[^\n`]*$", re.MULTILINE)
_PYTHON = ("python", "python3", "py")
_START = re.compile(r"(?:import \w|from \S+ import\b|(?:async )?def \w|class \w[^\n]*:|@\w)")
_HELPER = re.compile(rf"{_START.pattern}|[A-Z_][A-Z0-9_]* *(?::[^=]*)?=(?!=)")
_CODE_LINE = re.compile(
    rf"(?:\s|$|[@#)\]}}\"']|{_START.pattern}|if __name__\b"
    r"|(?:if|else|elif|try|except|finally|for|while|with)\b[^\n]*:\s*(?:#.*)?$"
    r"|\w+(?:[.\[]\S*)?(?: *: *\S+)? *[-+*/|&]?= *\S)"
)
_STATEMENT = r"(?:return|yield|raise|assert|global|nonlocal|del|import)\b|pass$|[\w.\[\], ]*\w\]? *[-+*/|&]?=(?!=) *\S"
_BODY_LINE = re.compile(
    rf"{_START.pattern}|{_STATEMENT}|\w+\.\w+\("
    rf"|(?:for|if|while|with|try)\b.*:\s*(?:#.*)?$|(?:for|if|while|with)\b.*: *(?:{_STATEMENT})"
)
_OPENS = re.compile(r"[:(\[{,\\]\s*(?:#.*)?$")
_INDENT = 4


class NoProgramError(ValueError):
    """The completion holds no program, or one that is cut off."""


Program = tuple[str, str]
"""A program, and the definitions of earlier blocks that it may need ("" for none)."""


def read_program(text: str, prompt: str, entry_point: str) -> Program:
    """The program of an answer. Raises NoProgramError where it holds none.

    It is the last ```python (or ~~~) block that defines the function, else the longest block that does, else the last
    block as the function's body. Without any block it is the completion as the function's body, as base models write
    it, else its last lines of code that define the function. `def f`, `f = ...` and a method `f` of a class define it.
    Imports, functions and classes of earlier blocks come along. A block that is never closed does not count, whatever
    came before it.
    """
    blocks = _blocks(text)
    if not blocks:
        return _unfenced(text, prompt, entry_point)
    defining = [index for index, (_, code) in enumerate(blocks) if _defines(code, entry_point)]
    in_python = [index for index in defining if blocks[index][0].lower() in _PYTHON]
    longest = max(defining, key=lambda index: len(blocks[index][1]), default=len(blocks) - 1)
    chosen = in_python[-1] if in_python else longest
    earlier = [code for language, code in blocks[:chosen] if language.lower() in (*_PYTHON, "")]
    code = blocks[chosen][1]
    return _callable(code, entry_point) if defining else _continued(prompt, code), _helpers(earlier, entry_point)


def _unfenced(text: str, prompt: str, entry_point: str) -> Program:
    runs = _runs(text)
    defining = [index for index, code in enumerate(runs) if _defines(code, entry_point)]
    if defining:
        return _callable(runs[defining[-1]], entry_point), _helpers(runs[: defining[-1]], entry_point)
    lines = text.splitlines()
    first = next((line for line in lines if line.strip()), "")
    if first[:1].isspace() or _BODY_LINE.match(first):
        return _continued(prompt, text), ""
    body = (at for at, line in enumerate(lines) if line.startswith(" " * _INDENT) and _BODY_LINE.match(line.strip()))
    if (start := next(body, None)) is None:
        raise NoProgramError("the answer holds no code")
    return _continued(prompt, "\n".join(lines[start:])), ""


def _defines(code: str, name: str) -> bool:
    return _at_top(name).search(code) is not None or _class_of(code, name) is not None


def _at_top(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(?:(?:async )?def {re.escape(name)}\b|{re.escape(name)} *(?::[^=\n]*)?=(?!=))", re.MULTILINE)


def _class_of(code: str, name: str) -> str | None:
    """The class at the top level that has the function as a method (`class Solution`), or None."""
    inside = None
    for line in code.splitlines():
        if match := re.match(r"class (\w+)", line):
            inside = match[1]
        elif line.strip() and not line[0].isspace():
            inside = None
        elif inside and re.match(rf"\s+(?:async )?def {re.escape(name)}\b", line):
            return inside
    return None


def _callable(code: str, name: str) -> str:
    """The code, whose function can be called by its name where it is a method."""
    owner = None if _at_top(name).search(code) else _class_of(code, name)
    return code if owner is None else f"{code.rstrip()}\n\n{name} = {owner}().{name}\n"


def _helpers(blocks: list[str], name: str) -> str:
    """Imports, functions, classes and constants of other blocks, but for drafts of the function itself."""
    kept = [chunk for code in blocks for chunk in _chunks(code) if _HELPER.match(chunk) and not _defines(chunk, name)]
    return "\n".join(kept)


def _chunks(code: str) -> list[str]:
    """The statements at the top level, each with the lines that belong to it and its decorators before it."""
    chunks: list[list[str]] = []
    for line, in_string in _with_strings(code.splitlines()):
        starts = not in_string and line.strip() and not line[0].isspace() and line[0] not in ")]}"
        if not chunks or (starts and not chunks[-1][-1].startswith("@")):
            chunks.append([])
        chunks[-1].append(line)
    return ["\n".join(chunk).rstrip() for chunk in chunks]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Language and dedented content of each fenced block. Raises NoProgramError where the last one is never closed."""
    blocks = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence["language"] and fence["marks"].startswith(opened["marks"]) and not _is_inside(fence, opened):
            content = text[opened.end() : fence.start()].strip("\n")
            blocks.append((opened["language"], _dedent(content, opened["indent"])))
            opened = None
    if opened is not None:
        raise NoProgramError("its last code block is never closed")
    return blocks


def _is_inside(fence: re.Match[str], opened: re.Match[str]) -> bool:
    """Whether a fence is indented like code in the block, such as one in a docstring, and closes nothing."""
    return len(fence["indent"].expandtabs(4)) >= len(opened["indent"].expandtabs(4)) + 4


def _dedent(content: str, indent: str) -> str:
    """`content` without the indentation of its fence, or of a whole definition; a body's own indentation stays."""
    content = re.sub(rf"^{indent}", "", content, flags=re.MULTILINE) if indent else content
    return textwrap.dedent(content) if _START.match(content.lstrip()) else content


def _runs(text: str) -> list[str]:
    """Lines of code outside of fences, in runs between lines of prose."""
    runs: list[list[str]] = []
    going = False
    for line, in_string in _with_strings(text.splitlines()):
        if going and (in_string or _CODE_LINE.match(line)):
            runs[-1].append(line)
        elif _START.match(line):
            runs.append([line])
            going = True
        else:
            going = False
    return ["\n".join(run) for run in runs]


def _with_strings(lines: list[str]) -> list[tuple[str, bool]]:
    """Each line, and whether it begins within a string of three quotes, where any text may stand."""
    marked, within = [], ""
    for line in lines:
        marked.append((line, bool(within)))
        for quotes in re.findall(r"\"\"\"|'''", re.sub(r"#(?![^'\"]*['\"]{3}).*$", "", line) if not within else line):
            within = "" if within == quotes else within or quotes
    return marked


def _continued(prompt: str, body: str) -> str:
    """The prompt's function with a body, which ends at the first line that is not indented."""
    lines = [line for line, in_string in _with_strings(body.splitlines()) if line.strip() and not in_string] or ["pass"]
    if lines[0][0].isspace():
        indented = body
    elif _lost_only_its_start(lines):
        indented = " " * _INDENT + body.lstrip()
    else:
        indented = textwrap.indent(body, " " * _INDENT)
    kept = []
    for line, in_string in _with_strings(indented.strip("\n").splitlines()):
        if line.strip() and not line[0].isspace() and not in_string and line[0] not in "#)]}":
            break
        kept.append(line)
    return prompt.rstrip() + "\n" + "\n".join(kept) + "\n"


def _lost_only_its_start(lines: list[str]) -> bool:
    """Whether only the first line of a body lacks its indentation, as a completion that was stripped does."""
    body = list(takewhile(bool, [len(line) - len(line.lstrip()) for line in lines[1:]]))
    if not body or not _OPENS.search(lines[0]):
        return bool(body)
    return body[0] >= 2 * _INDENT or min(body) < body[0]
