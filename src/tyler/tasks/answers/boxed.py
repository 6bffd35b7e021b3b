"""The boxed answer of a completion.

Every task extracts its answers here, in training and in evaluation, so that the two cannot drift apart. Model output is
only ever matched against patterns, in time linear in its length, and never evaluated.
"""

import re

from tyler.tasks.problem import after_thought

_MATH = re.compile(r"\$(?P<dollar>[^$]*)\$|\\\((?P<inline>.*)\\\)", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212"), "-")
_SPACE = re.compile(r"(?:\\[,;: ]|\\q?quad(?![A-Za-z])|[~\s\u00a0\u2009\u202f])+")
_DIGITS = re.compile(r"\\frac ?([0-9]) ?([0-9])(?![0-9])")
_WIDE = re.compile(r"quad|[\n\r\t\v\f\u2001\u2003]")
_NUMBER = re.compile(r"[0-9.]|\\[dtc]?frac(?![A-Za-z])")


def plain(text: str) -> str:
    r"""`text` without LaTeX dress: math delimiters, `\text{}`, `\left`, display fractions, the many spaces of LaTeX."""
    text = text.strip().translate(_DASHES).replace(r"\!", "").replace("{,}", ",")
    if math := _MATH.fullmatch(text):
        text = math["inline"] if math["dollar"] is None else math["dollar"]
    text = _TEXT.sub(r" \1 ", text)
    text = re.sub(r"\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![A-Za-z])", "", text)
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _DIGITS.sub(r"\\frac{\1}{\2}", text)
    return _SPACE.sub(_one_space, text).strip()


def parted(text: str) -> str:
    """`text` with `; ` for a wide space between two numbers, and all other spaces as they are."""
    return _SPACE.sub(lambda run: "; " if _one_space(run) == "; " else run[0], text)


def _one_space(run: re.Match[str]) -> str:
    before = run.string[run.start() - 1 : run.start()]
    parts = before and before in "0123456789}" and _WIDE.search(run[0]) and _NUMBER.match(run.string, run.end())
    return "; " if parts else " "


_FONT = re.compile(
    r"\\(?:boldsymbol|bm|underline|emph|textsf|textsl|mathsf|texttt|textnormal|mathit|operatorname)\s*\{([^{}]*)\}"
)
_SWITCH = re.compile(
    r"\\(?:rm|bf|it|sf|tt|displaystyle|textstyle|large|Large|huge)(?![A-Za-z]) ?|\\(?:text)?color ?\{[^{}]*\}"
)
_STARS = re.compile(r"(\*\*|__)(?P<bold>[^*]+)\1")
_UNIT_FRACTION = re.compile(r" ?\\frac ?\{ ?([A-Za-z]+) ?\} ?\{ ?([A-Za-z]+(?: ?\^ ?(?:[0-9]|\{ ?[0-9] ?\}))?) ?\}")
_WHOLE = re.compile(r"\([^()]*\)|\{[^{}]*\}")


def bare(text: str) -> str:
    r"""`text` without dress: as `plain`, nested `\text{}`, bold, an outer parenthesis, closing punctuation."""
    text = re.sub(r"\^ ?(?:\{ ?\\circ ?\}|\\circ)|\\degree(?![A-Za-z])", "°", text)
    for _ in range(4):
        before, text = text, plain(_FONT.sub(r" \1 ", _SWITCH.sub("", text)))
        if bold := _STARS.fullmatch(text):
            text = bold["bold"]
        if text == before:
            break
    text = _UNIT_FRACTION.sub(r" \1/\2", text).strip().rstrip(" .,;")
    return (text[1:-1] if _WHOLE.fullmatch(text) else text).strip()


_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_DEEPER = {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}
_BARE = re.compile(r"(?:\\[^()\[\]]|[^\s$\\])+")


class UnreadableAnswerError(ValueError):
    """The completion's answer is not of the task's kind; grades as `unparsable`."""


class UnreadableGoldError(ValueError):
    """The gold answer is not of the task's kind: an error of the data set; grades as `gold_error`."""


def boxed_answer(completion: str) -> str | None:
    r"""The content of the last `\boxed` or `\fbox`, stripped, or None if it is missing or never closed.

    The thought is dropped first (`after_thought`). Braces balance, and escaped
    ones (`\{`) do not count. Without braces (`\boxed 7`) the box ends at the next space or `$`, or at the sentence's
    punctuation. Nothing outside the box is looked at, and an earlier box never stands in for the last one.
    """
    span = boxed_span(completion)
    return None if span is None else completion[slice(*span)]


def boxed_span(completion: str) -> tuple[int, int] | None:
    """Where the boxed answer stands in a completion: its first character, and the one after its last."""
    text = after_thought(completion)
    inside = [box.end() for box in _BOX.finditer(text)]
    if not inside:
        return None
    if text.startswith("{", inside[-1]):
        end = closing(text, inside[-1])
        content = None if end is None else _stripped(text[inside[-1] + 1 : end])
    else:
        bare = _BARE.match(text, inside[-1])
        content = bare.group().rstrip(".,;:") or None if bare else None
    if content is None:
        return None
    start = len(completion) - len(text) + text.index(content, inside[-1])  # a thought is left out at the front
    return start, start + len(content)


def closing(text: str, start: int, brackets: re.Pattern[str] = _BRACE) -> int | None:
    """Where the bracket at `start` closes, counting those that `brackets` finds, or None where it never does."""
    depth = 0
    for bracket in brackets.finditer(text, start):
        depth += _DEEPER.get(bracket.group(), 0)
        if depth == 0:
            return bracket.start()
    return None


def _stripped(text: str) -> str:
    r"""`text` without spaces around it; the `\ ` of LaTeX is one too."""
    text = text.strip()
    while (len(text) - len(text.rstrip("\\"))) % 2:
        text = text[:-1].rstrip()
    return text


_MAX_LENGTH = 4000

_LEAD = re.compile(
    r"(?:(?:the )?(?:(?:final|correct|best|right) )*(?:answer|option|choice)(?: is(?:,? (?:option|choice))?)? ?[:=]? ?)"
    r"(?:option |choice )?(?=[(\[{]?[A-Za-z](?![A-Za-z]))",
    re.IGNORECASE,
)
_ENCLOSED = re.compile(r"\((?P<round>[A-Za-z])\)|\[(?P<square>[A-Za-z])\](?=\.?\Z)|\{(?P<curly>[A-Za-z])\}(?=\.?\Z)")
_MARKED = re.compile(r"(?P<letter>[A-Za-z])(?P<mark> ?[).:])?")
_VERDICT = re.compile(r"(?: is)?(?: the)? (?:correct|right)(?: (?:answer|option|choice))?\.?", re.IGNORECASE)
_DENIAL = re.compile(r"\W*(?:is |are )?(?:not|wrong|incorrect|false)\b", re.IGNORECASE)
_FORMULA = re.compile(
    r"(?:[=^_*/+<>&|]|\\(?:times|cdot|pm|to|rightarrow|approx|neq?|leq?|geq?|sim|in|cup|cap)(?![A-Za-z]))"
)
_ORGANISM = re.compile(
    r"(?:elegans|melanogaster|thaliana|subtilis|difficile|albicans|rerio|discoideum|cereus|anthracis|burgdorferi"
    r"|baumannii|nidulans|botulinum|tetani|perfringens|trachomatis|cerevisiae|fumigatus|niger|flavus|afarensis)\b"
)
_PARENTHESIS = re.compile(r" \(([^()]*(?:\([^()]*\)[^()]*)*)\)\.?")
_ONE_WORD = re.compile(r"[A-Za-z]*\Z")
"""`C (graphite)` is carbon."""
_CONNECTED = re.compile(r"\W*(?:or|and|both|see|unless)\b", re.IGNORECASE)
_OTHERS = re.compile(r"\W*(?:(?:or|and|and/or|both|to|then) ?\W*)?[A-Za-z](?:\W+(?:(?:or|and|to) \W*)?[A-Za-z])*\W*")
_ALL_OTHERS = re.compile(rf"{_OTHERS.pattern}\Z")


def letter(text: str, letters: str) -> str | None:
    r"""The one of `letters` that `text` chooses, or None where it chooses none, several, or may be an option's text.

    A letter counts alone, in parentheses, with a mark (`B)`, `B.`, `B:`), and after `Option` or `The answer is`; the
    option's text may follow a parenthesis or a mark, or stand in parentheses of its own (`B (10 eV)`). A letter in the
    other case than `letters` counts alone, and before text where a parenthesis closes it. `A or B`, `A/B`, `AB`,
    `A proton`, `C. elegans`, `C-C`, `A: B` choose nothing.
    """
    if len(text) > _MAX_LENGTH:
        return None
    text = _unquoted(bare(text))
    lead = _LEAD.match(text)
    text = text[lead.end() :] if lead else text
    match = _ENCLOSED.match(text) or _MARKED.match(text)
    if match is None:
        return None
    chosen = next(group for group in match.groups() if group is not None)
    mark = (match["mark"] or "").strip() if match.re is _MARKED else "()"
    known = chosen if chosen in letters else chosen.swapcase()
    if known not in letters or not _stands_alone(chosen, mark, text[match.end() :], native=chosen == known):
        return None
    return known


def _unquoted(text: str) -> str:
    """`text` without the same quotation marks or stars at both ends."""
    marks = text[: len(text) - len(text.lstrip("\"'`*"))]
    return text[len(marks) : -len(marks)].strip() if marks and text.endswith(marks) and len(text) > len(marks) else text


def _stands_alone(chosen: str, mark: str, rest: str, *, native: bool) -> bool:
    """Whether what follows the letter and its mark is nothing, or the text of that one option."""
    if not rest.strip(" .,;:)") or _VERDICT.fullmatch(rest):
        return True
    if not mark and native and (explained := _PARENTHESIS.fullmatch(rest)):
        return not any(pattern.match(explained[1]) for pattern in (_DENIAL, _ALL_OTHERS, _CONNECTED, _ONE_WORD))
    parenthesis = mark in (")", "()")
    if not mark or not (parenthesis or native):
        return False
    # `B)10 eV` is an option's text; `B.5`, `A:T`, `(D)-glucose` and `(A)(B)` are not.
    if rest[0] not in " .:," and (not parenthesis or rest[0] in "-('"):
        return False
    text = rest.strip().lstrip(".:,)").strip()
    if _DENIAL.match(text) or _OTHERS.fullmatch(text) or (mark == "()" and _FORMULA.match(text)):
        return False
    if mark == "." and _ORGANISM.match(text):
        return False
    return all(other == chosen for other in _other_marks(mark, text))


def _other_marks(mark: str, text: str) -> list[str]:
    """Letters in `text` that stand as options do: `or (C)`, `, C)`, and after a connective `or C`."""
    letters = re.findall(r"(?:^|[\s,;(/])([A-Da-d])\)", text)
    letters += re.findall(r"^(?:or|and) \(?([A-Da-d])\b", text) + re.findall(r" or \(?([A-D])\)?\.?$", text)
    if mark in (".", ":"):
        letters += re.findall(rf"[\s,;]([A-D]){re.escape(mark)}\s", text)
    return letters
