"""The patterns with which the scanner looks for boundaries. Each looks a bounded way ahead."""

import re
from functools import lru_cache

LOOKAHEAD = 16
"""Characters after a `$`, a quote or a `{` that may be read before deciding whether a boundary precedes it."""
HEAD, PHRASE, LABEL = 48, 40, 32
"""Longest line heading, onset phrase and fence label, in characters; longer ones are not recognised."""
KEPT = 64
"""Characters of consumed text kept behind the read position: HEAD and PHRASE must fit in."""

ENVIRONMENTS = frozenset(
    ("align", "alignat", "displaymath", "eqnarray", "equation", "flalign", "gather", "math", "multline")
)
"""LaTeX environments that are formulas by themselves, with or without a star."""

INDENT = re.compile(r"[ \t\r]*")
EVENT = re.compile(r"[\n$`\\{\[]")
HEADING_ENDS = r"(?=[ \t]{1,8}[^ \t\r\n]|[ \t\r]{0,8}\n)"
BARE = re.compile(r"[ \t\r]*\n")
BLANK = re.compile(r"\n[ \t\r]*\n")
SOFT = r"\n(?=[ \t\r]*[^ \t\r\n])"  # a line break that is known not to start a blank line
NOT_OPENING = re.compile(r"[\s,;:!?)\]}'\"]|\.(?!\d)|<<")
DECISIVE = re.compile(
    r"(?P<formula>[\\^_{}]|(?<![\s=+\-*/(<$])\$(?=[^\d<]))"
    r"|\n|\$[\s\S]|<<|[.;:?]\s|(?<![A-Za-z0-9])[A-Za-z]{2}"
)
ATTACHED = re.compile(r"[\d.,]*\d[A-Za-z(+\-]")
FENCE_LABEL = re.compile(rf"[^`\n]{{0,{LABEL}}}")
RUNS = {"`": re.compile("`*"), "~": re.compile("~*")}
BEGIN = re.compile(r"\\begin\{([A-Za-z]{1,12})\*?\}")
BRACE = re.compile(rf"\{{[ \t\r]{{0,{LOOKAHEAD}}}(?:\n[ \t\r]{{0,{LOOKAHEAD}}})?")
CODE_EVENT = re.compile(r"\n|\"\"\"|'''|\{")
FIELD_EVENT = re.compile(r'["{}\[\],:\n]')
KEY = re.compile(rf'"(?:[^"\\\n]|\\[^\n]){{0,{LOOKAHEAD}}}')
DOLLAR_BODY = re.compile(rf"(?:[^\\$\n]+|\\[\s\S]|{SOFT})*")
BODIES = {
    "$$": re.compile(r"(?:[^\\$]+|\\[\s\S])*"),
    r"\)": re.compile(rf"(?:[^\\\n]+|\\[^)]|{SOFT})*"),
    r"\]": re.compile(r"(?:[^\\]+|\\[^\]])*"),
    r"\e": re.compile(r"(?:[^\\]+|\\[^e])*"),
    "[/": re.compile(r"[^\[]*"),
    "`": re.compile(rf"(?:[^`\n]+|{SOFT})*"),
    '"': re.compile(rf'(?:[^"\\\n]+|\\[^\n]|{SOFT})*'),
}
"""What a span skips at full speed, by the first two characters of what closes it; each stops where that may begin.

Their alternatives begin differently, so nothing is tried twice. (Possessive groups would say so, but early releases of
Python 3.11 read them wrongly.)
"""


def dollar_opens(text: str, at: int, final: bool) -> bool | None:
    """Whether the `$` at text[at] opens a formula, or None when more text is needed: at most LOOKAHEAD characters.

    Pandoc's rule (an opener has no space after it, a closer none before it and no digit after it), made causal: before
    a number, where `$` is often currency, what comes first decides: a sign that only formulas hold or a closer, or else
    a word, the end of a sentence or another amount. When nothing does, `$180(8-2)` is a formula and `$80 + 20` is not.
    """
    after = text[at + 1 : at + 1 + LOOKAHEAD]
    short = len(after) < LOOKAHEAD
    if final and short:
        after += " "
    if not after or (after in ".<" and not final):
        return None
    if NOT_OPENING.match(after):
        return False
    if not (after[0].isdigit() or after[0] == "."):
        return True
    if decisive := DECISIVE.search(after):
        return decisive.lastgroup == "formula"
    if short and not final:
        return None
    return not short and ATTACHED.match(after) is not None


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where the match of `pattern` at `at` ends; `at` itself without a match."""
    match = pattern.match(text, at)
    return match.end() if match else at


@lru_cache
def alternatives(cues: tuple[tuple[str, str], ...], prefix: str, ahead: str) -> tuple[re.Pattern[str], dict[str, str]]:
    """All cues (rule, regex) as one regex with a group per cue, and the rule of each group."""
    named = {f"{prefix}{index}": cue for index, cue in enumerate(cues)}
    pattern = "|".join(f"(?P<{group}>{regex}){ahead}" for group, (_, regex) in named.items())
    return re.compile(pattern or r"(?!)"), {group: rule for group, (rule, _) in named.items()}
