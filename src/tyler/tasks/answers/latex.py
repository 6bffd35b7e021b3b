r"""LaTeX as answers write it: one spelling for the many of the same thing, and where its parts begin and end.

`tidy` undoes what is only dress (`\left`, `\dfrac`, `\text{}`, dollars, the spaces of LaTeX, Unicode); the other
functions split at the top level, outside of all brackets. Everything takes time linear in the text, or nearly.
"""

import re
from itertools import product

from tyler.tasks.answers.boxed import closing, parted
from tyler.tasks.answers.quantities import SPELLINGS, is_known

_UNICODE, _ALIASES = str.maketrans(SPELLINGS["unicode"]), SPELLINGS["commands"]
_COMMAND = re.compile(r"\\([A-Za-z]+) ?(?![A-Za-z])")
_FONT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|textnormal|mathrm|mathbf|mathit|mathsf|mathcal|mbox|hbox|operatorname\*?|"
    r"fbox|boxed|emph|underline)(?![A-Za-z]) ?\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_COLOR = re.compile(r"\\(?:text)?color ?\{[^{}]*\}")
_ROW_SPACE = re.compile(r"\\\\ *\[ *[0-9.]+ *(?:pt|em|ex|mm|cm) *\]")
_DRESSED = re.compile(rf"{_FONT.pattern}|(?<=[0-9}}]) +(?P<words>[A-Za-z]{{3,}}(?:[ ./-]+[A-Za-z]+)*)")
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})*,0[0-9]{2}(?:,[0-9]{3})*(?![0-9,])")
_JOINS = re.compile(r"(?:and|or)(?![A-Za-z])")
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(?:arc(?=sin|cos|tan))?(sin|cos|tan|cot|sec|csc|ln|log|pi|sqrt|infty)(?![A-Za-z])"
)
_WORDS = {"infinity": r"\infty ", "inf": r"\infty ", "degrees": r"\degree ", "degree": r"\degree ", "percent": r"\%"}
_WORD = re.compile(rf"(?<![\\A-Za-z])(?:{'|'.join(_WORDS)})(?![A-Za-z])", re.IGNORECASE)
_SHORT_UNITS = {"m": "meters", "g": "grams", "s": "seconds", "h": "hours", "L": "liters", "l": "liters"}
_SHORT_UNIT = re.compile(r"[mgshLl]|[A-Za-z]{1,2}/[mgshLl](?: ?\^ ?[0-9])?")
_STARS = re.compile(r"^(\*\*?|__)(?=[^*])(.*[^*])\1\.?$", re.DOTALL)
_LEAD = re.compile(
    r"^(?:(?:so|thus|hence|therefore),? )?"
    r"(?:(?:the )?(?:(?:final|correct|exact) )?(?:answer|value|result)(?: is| ?[:=]) ?:?"
    r"|(?:approximately|about|roughly)|[A-Za-z]{4,}(?: [A-Za-z]+)* ?:) ?(?=\S)",
    re.IGNORECASE,
)


def tidy(text: str) -> str:
    """`text` in one spelling, without stars around it and without what leads to it (`The answer is`)."""
    text = _STARS.sub(r"\2", text.strip())
    text = _ROW_SPACE.sub(r"\\\\ ", _COLOR.sub("", _DRESSED.sub(_as_product, parted(text).translate(_UNICODE))))
    text = text.replace(r"\\", r"\row ").replace(r"\$", r"\dollar ").replace("$", "")
    text = re.sub(r"\\[()\[\]]", " ", text)
    text = re.sub(r"(?<=[0-9])(?:\{,\}|,\\!|\\,(?=[0-9]{3}(?![0-9]))) *(?=[0-9])", "", text)
    text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"\\[,;: >]|~", " ", text.replace(r"\!", ""))
    for _ in range(2):
        text = _FONT.sub(_from_font, text)
    text = _COMMAND.sub(_alias, text)
    text = re.sub(r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z])|\\prime(?![A-Za-z]))", r"\\degree ", text)
    text = _WORD.sub(lambda word: _WORDS[word[0].lower()], text)
    text = re.sub(r"\\?%", r"\\percent ", text)
    text = _FUNCTION.sub(lambda name: "\\" + name[0] + " ", text)
    text = text.replace("**", "^").replace("*", r"\cdot ").replace("<=", r"\le ").replace(">=", r"\ge ")
    text = re.sub(
        r"(^|[(\[,=]) ?\+ ?(?=[0-9.\\A-Za-z])", r"\1", re.sub(r"\\mathbb ?(?:R|\{R\})", r"(-\\infty,\\infty)", text)
    )
    text = _with_braces(text)
    text = re.sub(r"\^ ?(-? ?(?:[0-9]+|[A-Za-z]))", r"^{\1}", text)
    text = re.sub(r"_ ?([0-9]+|[A-Za-z])", r"_{\1}", text)
    text = re.sub(r"\{([:=])\}", r"\1", text)
    text = re.sub(r"\\\{ ?\\\}", r"\\emptyset ", text)
    return _LEAD.sub("", re.sub(r"\s+", " ", text).strip().rstrip(".,;: "), count=1)


def compact(text: str) -> str:
    """`text` without the spaces and braces that say nothing."""
    text = re.sub(r" (?![A-Za-z0-9])|(?<![A-Za-z0-9]) ", "", text)
    return re.sub(r"(?<=[\^_])\{([A-Za-z0-9])\}", r"\1", text)


def _as_product(match: re.Match[str]) -> str:
    r"""Words that follow a number outside of `\text{}`: touching it, as letters that are multiplied, unless a unit."""
    words = match["words"]
    return match[0] if words is None or is_known(words) or _JOINS.match(words) else words


def _alias(command: re.Match[str]) -> str:
    name, alias = command[1], _ALIASES.get(command[1], command[0])
    return f"\\{alias} " if alias.isalpha() and name != "imath" else alias


def _from_font(command: re.Match[str]) -> str:
    r"""The content of `\text{}` and its kin; a letter that can only be a unit (`5\text{ m}`) becomes the word."""
    content = command[1]
    before = command.string[: command.start()].rstrip()
    if _SHORT_UNIT.fullmatch(content.strip()) and before[-1:] in "0123456789}":
        return f" {re.sub('[A-Za-z]+', lambda unit: _SHORT_UNITS.get(unit[0], unit[0]), content)} "
    touches = re.search(r"\\[A-Za-z]{1,20}$", before[-21:]) is not None
    return f" {content} " if touches or len(content.strip()) > 1 else content


def _with_braces(text: str) -> str:
    r"""`text` with braces around every argument of `\frac` and `\sqrt`, and around `^(...)`."""
    for command in reversed(list(re.finditer(r"\\(frac|binom|sqrt)(?![A-Za-z])|\^ ?(?=\()", text))):
        start = command.end()
        if command[1] == "sqrt" and (root := re.compile(r" ?\[[^\]]*\]").match(text, start)):
            start = root.end()
        arguments, end = [], start
        for _ in range(2 if command[1] in ("frac", "binom") else 1):
            content, end = _argument(text, end, long=command[1] == "sqrt" or command[1] is None)
            arguments.append(f"{{{content}}}")
        text = text[: command.end()].rstrip() + text[command.end() : start].strip() + "".join(arguments) + text[end:]
    return text


def _argument(text: str, at: int, *, long: bool) -> tuple[str, int]:
    """The argument that begins at `at`, without its braces, and where it ends; `long` takes (...) and whole numbers."""
    while text[at : at + 1] == " ":
        at += 1
    if text.startswith(("{", "(") if long else "{", at) and (end := closing(text, at, _GROUP)) is not None:
        return text[at + 1 : end].strip(), end + 1
    match = re.compile(r"\\[A-Za-z]+|[0-9]+|." if long else r"\\[A-Za-z]+|.").match(text, at)
    return (match[0], match.end()) if match and match[0] != "}" else ("", at)


_GROUP = re.compile(r"\\.|[{}()\[\]]", re.DOTALL)
_BRACKET = re.compile(r"\\[{}]|\\(?:begin|end) ?(?=\{)|\\[A-Za-z]+|[{}()\[\]]")
_OPENING = {"{", "(", "[", r"\{", r"\begin", r"\langle", r"\lfloor", r"\lceil"}
_CLOSING = {"}", ")", "]", r"\}", r"\end", r"\rangle", r"\rfloor", r"\rceil"}
_PAIRS = (*product("([", ")]"), (r"\{", r"\}"), (r"\langle", r"\rangle"), ("{", "}"))


def depths(text: str) -> list[int] | None:
    """How deep in brackets each character is (a bracket as deep as its content), or None where they do not balance.

    Round and square brackets close each other, as in a half-open interval; a brace closes only a brace.
    """
    levels: list[int] = []
    stack: list[str] = []
    for token in _BRACKET.finditer(text):
        levels += [len(stack)] * (token.start() - len(levels))
        mark, outside = token[0].rstrip(), len(stack)
        if mark in _OPENING:
            stack.append(mark)
        elif mark in _CLOSING and (not stack or not _closes(mark, stack.pop())):
            return None
        levels += [max(outside, len(stack))] * len(token[0])
    return None if stack else levels + [0] * (len(text) - len(levels))


def _closes(mark: str, opening: str) -> bool:
    return mark in (r"\rfloor", r"\rceil") or (opening, mark) in (*_PAIRS, (r"\begin", r"\end"))


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """The parts of `text` between the separators outside of all brackets, stripped; separators are left out."""
    if (levels := depths(text)) is None:
        return [text]
    parts, at = [], 0
    for match in separator.finditer(text):
        if levels[match.start()] == 0:
            parts.append(text[at : match.start()].strip())
            at = match.end()
    return [*parts, text[at:].strip()]


def both_signs(text: str) -> list[str]:
    r"""The two readings of `1 \pm 2`, upper signs first; `text` itself where it has no such sign."""
    if not re.search(r"\\(?:pm|mp)(?![A-Za-z])", text):
        return [text]
    upper = re.sub(r"\\mp(?![A-Za-z])", "-", re.sub(r"\\pm(?![A-Za-z])", "+", text))
    lower = re.sub(r"\\mp(?![A-Za-z])", "+", re.sub(r"\\pm(?![A-Za-z])", "-", text))
    return [re.sub(r"(^|= ?)\+ ?", r"\1", upper.strip()), lower]


def bracketed(text: str) -> tuple[str, str, str] | None:
    """Opening bracket, content and closing bracket of a `text` that is one pair of brackets; None for any other."""
    for opening, end in _PAIRS:
        if text.startswith(opening) and text.endswith(end) and len(text) >= len(opening) + len(end):
            inner = text[len(opening) : len(text) - len(end)]
            if not inner.endswith("\\") and depths(inner) is not None:
                return opening, inner.strip(), end
    return None


_ENVIRONMENT = re.compile(
    r"\\begin ?\{(?P<name>[pbvVB]?matrix|smallmatrix|array|cases|aligned)\}(?: ?\{[clr|]*\})?(?P<body>.*)"
    r"\\end ?\{(?P=name)\}"
)
_PLAIN_MATRIX = ("matrix", "pmatrix", "bmatrix", "smallmatrix", "array")


def environment(text: str) -> tuple[str, list[list[str]]] | None:
    """Name and entries by row of what has rows: a matrix, cases, a determinant, lines of formulas; else None.

    Round and square brackets around a matrix are the same, and so are its environments.
    """
    around = bracketed(text)
    match = _ENVIRONMENT.fullmatch(around[1] if around and around[1].startswith(r"\begin") else text)
    if match is None or match["body"].count(r"\begin"):
        return None
    plain_matrix = match["name"] in _PLAIN_MATRIX
    if around and not plain_matrix:
        return None
    rows = [split(row, re.compile("&")) for row in split(match["body"], re.compile(r"\\row(?![A-Za-z])")) if row]
    return "matrix" if plain_matrix else match["name"], rows
