"""Problems that are nearly the same: a word or two differ, and all numbers are the same. Exact matches miss them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

LENGTH = 3
"""Words in a row that are compared (a shingle)."""
SIMILARITY = 0.7
"""Two texts with the same numbers are nearly one from this Jaccard similarity of their shingles."""

_WORD = re.compile(r"[0-9]+(?:[.,/][0-9]+)*|[^\W\d_]+|[-+*/=<>^]")


class NearIndex:
    """Texts to be found again, by name, in the time that one text takes to read."""

    def __init__(self, texts: Iterable[tuple[tuple[str, str], str]] = ()) -> None:
        self._shingles: dict[tuple[str, str], frozenset[str]] = {}
        self._numbers: dict[tuple[str, str], list[str]] = {}
        self._holders: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for name, text in texts:
            self._numbers[name], self._shingles[name] = _read(text)
            for shingle in self._shingles[name]:
                self._holders[shingle].append(name)

    def nearest(self, text: str) -> tuple[str, str] | None:
        """The name of the text that this one nearly is, or None."""
        numbers, shingles = _read(text)
        shared = Counter(name for shingle in shingles for name in self._holders.get(shingle, ()))
        for name, count in shared.most_common(3):
            together = len(shingles) + len(self._shingles[name]) - count
            if count >= SIMILARITY * together and numbers == self._numbers[name]:
                return name
        return None


def _read(text: str) -> tuple[list[str], frozenset[str]]:
    """The numbers of a text in order of size, and its shingles."""
    words = _WORD.findall(text.casefold())
    rows = range(max(1, len(words) - LENGTH + 1))
    return sorted(word for word in words if word[0].isdigit()), frozenset(
        " ".join(words[at : at + LENGTH]) for at in rows
    )
