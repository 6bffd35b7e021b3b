r"""The letter of a multiple-choice answer, without algebra: `B`, `(B)`, `\text{B}`, `B) 10 eV`, `Option B`."""

from __future__ import annotations

import re

from tyler.tasks.answers.boxed import bare

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
    found = _ENCLOSED.match(text) or _MARKED.match(text)
    if found is None:
        return None
    chosen = next(group for group in found.groups() if group is not None)
    mark = (found["mark"] or "").strip() if found.re is _MARKED else "()"
    known = chosen if chosen in letters else chosen.swapcase()
    if known not in letters or not _stands_alone(chosen, mark, text[found.end() :], native=chosen == known):
        return None
    return known


def _unquoted(text: str) -> str:
    """`text` without the same quotation marks or stars at both ends."""
    marks = text[: len(text) - len(text.lstrip("\"'`*"))]
    return text[len(marks) : -len(marks)].strip() if marks and text.endswith(marks) and len(text) > len(marks) else text


def _stands_alone(chosen: str, mark: str, rest: str, *, native: bool) -> bool:
    """Whether what follows the letter and its mark is nothing, or the text of that one option."""
    if not rest.strip(" .,;:)"):
        return True
    if _VERDICT.fullmatch(rest):
        return True
    if not mark and native and (said := _PARENTHESIS.fullmatch(rest)):
        return not any(pattern.match(said[1]) for pattern in (_DENIAL, _ALL_OTHERS, _CONNECTED, _ONE_WORD))
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
    found = re.findall(r"(?:^|[\s,;(/])([A-Da-d])\)", text)
    found += re.findall(r"^(?:or|and) \(?([A-Da-d])\b", text) + re.findall(r" or \(?([A-D])\)?\.?$", text)
    if mark in (".", ":"):
        found += re.findall(rf"[\s,;]([A-D]){re.escape(mark)}\s", text)
    return found
