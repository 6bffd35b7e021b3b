"""The boundary scanner: reads an answer from left to right and finds the boundaries of the rules.

It looks a bounded distance ahead and gives the same boundaries however the text is cut into pieces: that is what makes
training data and routing meet. Its states are methods: each reads on and names the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import ClassVar

from tyler.boundaries import patterns
from tyler.boundaries.patterns import alternatives, dollar_opens, skip
from tyler.boundaries.rules import RULES, Boundary


class BoundaryScanner:
    """Finds boundaries in a text that arrives in pieces: `feed` each piece, then `close`.

    A boundary is reported once, in order of position, as soon as it is certain; the cost of a piece is proportional to
    its length. `rules` are names in RULES; ValueError for any other.
    """

    def __init__(self, rules: Collection[str] = RULES) -> None:
        if unknown := sorted(set(rules) - set(RULES)):
            raise ValueError(f"unknown boundary rules {unknown}; the rules are {list(RULES)}")
        self._rules = {name: rule for name, rule in RULES.items() if name in rules}
        headings = tuple((name, cue) for name, rule in self._rules.items() for cue in rule.headings)
        phrases = tuple((name, cue) for name, rule in self._rules.items() for cue in rule.phrases)
        self._headings, self._heading_cues = alternatives(headings, "heading", patterns.HEADING_ENDS)
        self._phrases, self._phrase_cues = alternatives(phrases, "phrase", "")
        self._found = [Boundary(0, name) for name, rule in self._rules.items() if rule.at_start]
        self._text, self._base = "", 0  # the text kept, and where it starts in y; all indices below are into it
        self._at = 0  # everything before is consumed
        self._hold: int | None = None  # where an undecided boundary may fall
        self._state: Callable[[bool], bool] = self._line_start
        self._closed = False
        self._head: int | None = None  # where the current line starts, while a heading is possible
        self._resume = 0  # where the search for phrases resumes
        self._fired: set[str] = set()  # cues that were seen
        self._visible = False  # something but white space was seen
        self._due: set[str] = set()  # rules with a boundary at the start of the next visible line
        self._fresh: set[str] = set()  # rules with a boundary that only headings have followed
        self._bare = False  # the current line is a heading and nothing else
        self._unpaired = False  # this paragraph has a `$` that was taken for currency
        self._fence, self._json, self._quotes = "", False, ""  # of a code block: its fence, label, open docstring
        self._nesting, self._key_next = "", False  # of an object: open braces and brackets, a key may be next

    @property
    def settled(self) -> int:
        """Characters into y before which no boundary can still appear: a router may commit the tokens before it."""
        return self._base + (len(self._text) if self._hold is None else self._hold)

    def feed(self, piece: str) -> list[Boundary]:
        """The boundaries that became certain with `piece`, the next characters of y (the first call has position 0)."""
        if self._closed:
            raise ValueError("this BoundaryScanner was closed; start a new one for another text")
        if self._at > 8 * patterns.KEPT:
            self._forget(self._at - patterns.KEPT)
        self._text += piece
        return self._scan(final=False)

    def close(self) -> list[Boundary]:
        """The boundaries that became certain because the text ends here; nothing can be fed afterwards."""
        self._closed = True
        return self._scan(final=True)

    def _scan(self, final: bool) -> list[Boundary]:
        if self._at < len(self._text):  # an empty piece changes nothing, what is held included
            self._hold = None
        while self._at < len(self._text) and self._state(final):
            pass
        if final:
            self._hold = None
        boundaries, self._found = self._found, []
        return boundaries

    def _forget(self, count: int) -> None:
        self._text = self._text[count:]
        self._base += count
        self._at -= count
        self._resume -= count
        self._head = None if self._head is None else self._head - count

    def _wait(self, hold: int | None = None) -> bool:
        self._hold = hold
        return False

    def _go(self, state: Callable[[bool], bool], at: int) -> bool:
        self._state, self._at, self._resume = state, at, at
        return True

    def _emit(self, names: Iterable[str], index: int) -> None:
        self._found += [Boundary(self._base + index, name) for name in self._rules if name in names]

    def _open(self, kind: str, index: int) -> None:
        self._emit([name for name, rule in self._rules.items() if kind in rule.openings], index)

    # Prose: lines, headings and phrases

    def _line_start(self, final: bool) -> bool:
        """At the start of a line: passes blank lines; the first visible one takes the boundaries that are due."""
        text, line = self._text, self._at
        first = skip(patterns.INDENT, text, line)
        hold = line if self._due else None
        if first == len(text):
            return self._wait(hold)
        if text[first] == "\n":
            self._unpaired = False
            if self._visible:
                self._due |= {name for name, rule in self._rules.items() if rule.after_blank} - self._fresh
            return self._go(self._line_start, first + 1)
        tildes = text.startswith("~~~", first)
        if not tildes and text[first:] in ("~", "~~") and not final:
            return self._wait(first if hold is None else hold)
        self._emit(self._due, line)
        self._fresh |= self._due
        self._due, self._visible, self._bare = set(), True, False
        if tildes:
            return self._open_fence(first)
        self._head = first
        return self._go(self._prose, first)

    def _prose(self, final: bool) -> bool:
        """From the read position to the next character that may open something."""
        text = self._text
        event = patterns.EVENT.search(text, self._at)
        end = event.start() if event else len(text)
        if self._head is not None:
            self._find_heading(self._head, end)
        self._find_phrases(end)
        self._at = end
        if event:
            return self._EVENTS[event.group()](self, end, final)
        head_end = len(text) if self._head is None else len(text.rstrip(" \t\r"))
        return self._wait(head_end if head_end < len(text) else None)

    def _find_heading(self, head: int, end: int) -> None:
        """A heading at text[head:], when it and what follows it have been read."""
        match = self._headings.match(self._text, head, min(end + 1, head + patterns.HEAD))
        if match or end < len(self._text) or len(self._text) >= head + patterns.HEAD:
            self._head = None
        if match is None or (name := self._fires(self._heading_cues, match)) is None:
            return
        self._bare = patterns.BARE.match(self._text, match.end()) is not None
        if name in self._fresh:
            return
        if self._bare:
            self._due.add(name)
        else:
            self._emit([name], match.end())

    def _find_phrases(self, end: int) -> None:
        for match in self._phrases.finditer(self._text, self._resume, end + 1):
            if (name := self._fires(self._phrase_cues, match)) is not None:
                self._emit([name], match.end())
            self._resume = match.end()
        self._resume = max(self._resume, end - patterns.PHRASE)

    def _fires(self, cues: dict[str, str], match: re.Match[str]) -> str | None:
        """The rule whose cue matched, or None when the cue fires once and already did."""
        cue = str(match.lastgroup)
        if self._rules[cues[cue]].once and cue in self._fired:
            return None
        self._fired.add(cue)
        return cues[cue]

    # What each event character may open: True when it was consumed, False to wait for more text

    def _newline(self, at: int, final: bool) -> bool:
        if not self._bare:
            self._fresh.clear()
        return self._go(self._line_start, at + 1)

    def _dollar(self, at: int, final: bool) -> bool:
        text = self._text
        if text.startswith("$$", at):
            self._open("formula", at)
            return self._open_span("$$", at + 2)
        opens = dollar_opens(text, at, final)
        if opens is None:
            return self._wait(at)
        closes = self._unpaired and at > 0 and (text[at - 1].isalnum() or text[at - 1] in ")}]%!")
        if not opens or closes:
            self._unpaired = not closes
            return self._go(self._prose, at + 1)
        self._open("formula", at)
        return self._go(self._formula, at + 1)

    def _backtick(self, at: int, final: bool) -> bool:
        text = self._text
        end = skip(patterns.RUNS["`"], text, at)
        if end >= at + 3:
            return self._open_fence(at)
        if end == len(text) and not final:
            return self._wait(at)
        return self._open_span("`", end) if end == at + 1 else self._go(self._prose, end)

    def _backslash(self, at: int, final: bool) -> bool:
        text = self._text
        follows = text[at + 1 : at + 2]
        if follows in ("(", "["):
            self._open("formula", at)
            return self._open_span(r"\)" if follows == "(" else r"\]", at + 2)
        begin = patterns.BEGIN.match(text, at)
        if begin and begin[1] in patterns.ENVIRONMENTS:
            self._open("formula", at)
            return self._open_span(begin[0].replace("begin", "end"), begin.end())
        name = text[at + 7 : at + 21]
        starts = r"\begin{".startswith(text[at : at + 7]) and (not name or name.rstrip("*").isalpha())
        if starts and at + 21 > len(text) and not final:
            return self._wait(at)
        return self._go(self._prose, at + 2)

    def _bracket(self, at: int, final: bool) -> bool:
        if self._text.startswith("[asy]", at):
            self._open("code", at)
            return self._open_span("[/asy]", at + 5)
        if "[asy]".startswith(self._text[at:]) and not final:
            return self._wait(at)
        return self._go(self._prose, at + 1)

    def _brace(self, at: int, final: bool) -> bool:
        """`{`: an object when a quote follows it; anything else is text."""
        text = self._text
        quote = skip(patterns.BRACE, text, at)
        if quote == len(text) and not final:
            return self._wait(at + 1 if self._due else None)
        if not text.startswith('"', quote):
            return self._go(self._state, at + 1)
        self._nesting, self._key_next = "{", True
        return self._go(partial(self._field, self._state), quote)

    _EVENTS: ClassVar[dict[str, Callable[[BoundaryScanner, int, bool], bool]]] = {
        "\n": _newline,
        "$": _dollar,
        "`": _backtick,
        "\\": _backslash,
        "[": _bracket,
        "{": _brace,
    }

    # Spans: formulas and code, where only the end matters

    def _open_span(self, close: str, at: int, then: Callable[[bool], bool] | None = None) -> bool:
        return self._go(partial(self._span, close, then or self._prose), at)

    def _span(self, close: str, then: Callable[[bool], bool], final: bool) -> bool:
        """Up to the end of the span; spans that may not hold a blank line end before one."""
        text = self._text
        at = self._at = skip(patterns.BODIES[close[:2]], text, self._at)
        if at == len(text):
            return False
        if text.startswith(close, at):
            return self._go(then, at + len(close))
        if text[at] == "\n":
            return self._go(then, at) if final or patterns.BLANK.match(text, at) else self._wait()
        if close.startswith(text[at:]) and not final:
            return self._wait()
        self._at = at + 1 + text.startswith("\\", at)
        return True

    def _formula(self, final: bool) -> bool:
        """Up to the `$` that closes; one that follows a space and precedes a visible character is a fresh start."""
        text = self._text
        at = self._at = skip(patterns.DOLLAR_BODY, text, self._at)
        if at == len(text):
            return False
        if text[at] == "\n":
            return self._go(self._prose, at) if final or patterns.BLANK.match(text, at) else self._wait()
        if text[at] == "\\" or (at + 1 == len(text) and not final):
            self._at += final
            return self._wait(at if text[at - 1].isspace() else None)
        follows = text[at + 1 : at + 2]
        if text[at - 1].isspace() and not patterns.NOT_OPENING.match(follows or " "):
            return self._go(self._prose, at)
        if follows.isdigit():
            self._at = at + 1
            return True
        return self._go(self._prose, at + 1)

    def _open_fence(self, at: int) -> bool:
        self._open("code", at)
        self._fence = self._text[at]
        return self._go(self._label, at + 3)

    def _label(self, final: bool) -> bool:
        """The rest of the line that opens a fence; when it is long or holds a backtick, that was no fence."""
        text, start = self._text, self._at
        label = skip(patterns.RUNS[self._fence], text, start)
        end = skip(patterns.FENCE_LABEL, text, label)
        long = end == label + patterns.LABEL
        after = end if long else skip(patterns.RUNS["`"], text, end)
        if after == len(text) and not long and not final:
            return self._wait()
        if long or text[end : end + 1] != "\n":
            return self._go(self._prose, after)
        self._fence *= 3 + label - start
        self._json = text[label:end].strip().lower().startswith("json")
        self._quotes = ""
        return self._go(self._code, end)

    def _code(self, final: bool) -> bool:
        """Inside a fence: looks for its end, the first docstring and, when its label is json, fields."""
        text = self._text
        event = patterns.CODE_EVENT.search(text, self._at)
        if event is None:
            quotes = len(text) - len(text.rstrip("\"'"))
            self._at = len(text) if final else max(self._at, len(text) - min(quotes, 2))
            return False
        self._at, sign = event.start(), event.group()
        if sign == "\n":
            return self._code_line(self._at, final)
        if sign == "{" and self._json:
            return self._brace(self._at, final)
        self._at = event.end()
        if sign == self._quotes and "docstring" not in self._fired:
            self._fired.add("docstring")
            self._due |= {name for name, rule in self._rules.items() if rule.after_docstring}
        if sign != "{":
            self._quotes = "" if sign == self._quotes else self._quotes or sign
        return True

    def _code_line(self, at: int, final: bool) -> bool:
        """At the end of a line of code: the next one closes the fence, or takes the boundary after a docstring."""
        text = self._text
        first = skip(patterns.INDENT, text, at + 1)
        run = skip(patterns.RUNS[self._fence[0]], text, first)
        end = skip(patterns.INDENT, text, run)
        if end == len(text) and not final:
            return self._wait(at + 1 if self._due else None)
        if run - first >= len(self._fence) and (end == len(text) or text[end] == "\n"):
            self._due.clear()
            return self._go(self._prose, end)
        if first < len(text) and text[first] != "\n":
            self._emit(self._due, at + 1)
            self._due.clear()
        self._at = first
        return True

    def _field(self, outer: Callable[[bool], bool], final: bool) -> bool:
        """Inside an object: a boundary before each key, until the braces balance or a blank line or a fence comes."""
        text = self._text
        event = patterns.FIELD_EVENT.search(text, self._at)
        self._at = at = event.start() if event else len(text)
        if event is None:
            return False
        sign = event.group()
        if sign == "\n":
            return self._field_line(outer, at, final)
        if sign == '"':
            return self._string(at, final)
        if sign in "{[":
            self._nesting += sign
        elif sign in "}]":
            self._nesting = self._nesting[:-1]
        self._key_next = sign in "{," and self._nesting.endswith("{")
        self._at = at + 1
        if not self._nesting:
            return self._go(outer, self._at)
        return True

    def _field_line(self, outer: Callable[[bool], bool], at: int, final: bool) -> bool:
        first = skip(patterns.INDENT, self._text, at + 1)
        rest = self._text[first : first + 3]
        if rest in ("", "`", "``", "~", "~~") and not final:
            return self._wait(first)
        if rest[:1] in ("", "\n") or rest in ("```", "~~~"):
            return self._go(outer, at)
        self._at = first
        return True

    def _string(self, at: int, final: bool) -> bool:
        """At the quote that opens a string: whether it is a key is known from its first LOOKAHEAD characters."""
        if self._key_next:
            window = self._text[at : at + patterns.LOOKAHEAD]
            short = len(window) < patterns.LOOKAHEAD
            end = skip(patterns.KEY, window, 0)
            colon = skip(patterns.INDENT, window, end + 1) if window[end : end + 1] == '"' else end
            undecided = colon >= len(window) or window[colon] == "\\"
            if undecided and short and not final:
                return self._wait(at)
            if not short if undecided else window[colon] == ":":
                self._open("field", at)
        self._key_next = False
        return self._open_span('"', at + 1, then=self._state)


def find_boundaries(text: str, rules: Collection[str] = RULES) -> list[Boundary]:
    """All boundaries of a whole answer y, in order of position."""
    scanner = BoundaryScanner(rules)
    return scanner.feed(text) + scanner.close()
