"""Templates of word problems: what is left of a text without its numbers and names, and splits that keep them apart.

MAWPS and ASDiv-A hold many problems several times, with other numbers, names or things. Held-out problems mean little
where their twins are trained on, so whole groups of like problems are held out.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from tyler.tasks.word_problems import PERSON_NAMES

SIMILARITY = 0.6
"""Templates are alike whose words have at least this Jaccard similarity,"""
CONTAINMENT = 0.9
"""or where at least this share of the words of one are words of the other."""

_NUMBERS = (
    "one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty hundred thousand "
    "dozen twice half"
)
_NUMBER_WORDS = frozenset(_NUMBERS.split())
_PRONOUNS = {"she": "he", "her": "his", "hers": "his", "him": "his", "herself": "himself"}
_WORD = re.compile(r"[0-9][0-9.,/]*|[a-z]+")


def template(text: str) -> str:
    """The words of a problem, lower case, numbers as `#` and names as `@`, nouns in the singular, one gender.

    Two problems with one template differ in nothing but numbers, names, case, punctuation and number words.
    """
    plain = re.sub(r" ?'s\b", " ", re.sub(r" ?n't\b", "nt", text.replace("’", "'").casefold()))
    return " ".join(_masked(word) for word in _WORD.findall(plain))


def _masked(word: str) -> str:
    if word[0].isdigit() or word in _NUMBER_WORDS:
        return "#"
    return "@" if word in PERSON_NAMES else _PRONOUNS.get(word, _singular(word))


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ches", "shes", "xes", "sses", "oes")):
        return word[:-2]
    return word[:-1] if len(word) > 2 and word.endswith("s") and not word.endswith("ss") else word


def grouped(templates: Sequence[str]) -> dict[str, str]:
    """Each template's group, named by its first member in alphabetic order: the connected components of likeness."""
    distinct = sorted(set(templates))
    group = {text: text for text in distinct}

    def root(text: str) -> str:
        while group[text] != text:
            group[text] = group[group[text]]
            text = group[text]
        return text

    for text, second_text in alike(distinct):
        first, second = sorted((root(text), root(second_text)))
        group[second] = first
    return {text: root(text) for text in distinct}


def alike(templates: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of templates with a Jaccard similarity or a containment of words above the thresholds."""
    bits: dict[str, int] = {}
    masks = []
    for text in templates:
        words = set(text.split())
        masks.append((text, sum(1 << bits.setdefault(word, len(bits)) for word in words), len(words)))
    pairs = []
    for (text, mask, size), (other_text, other_mask, other_size) in combinations(masks, 2):
        shared = (mask & other_mask).bit_count()
        if shared >= SIMILARITY * (size + other_size - shared) or shared >= CONTAINMENT * min(size, other_size):
            pairs.append((text, other_text))
    return pairs


def held_out_groups(groups: Sequence[str], sizes: Mapping[str, int], *, largest: int, seed: int) -> dict[str, str]:
    """The split of each group that is held out; `groups` has one entry an item, the name of its group.

    `sizes` are filled in their order, each until it holds at least so many items, with the groups of at most `largest`
    items in the order of their SHA-256 with the seed.
    """
    members = Counter(groups)
    small = [group for group, count in members.items() if count <= largest]
    small.sort(key=lambda group: hashlib.sha256(f"{seed} {group}".encode()).digest(), reverse=True)
    placed: dict[str, str] = {}
    for split, size in sizes.items():
        count = 0
        while count < size and small:
            group = small.pop()
            placed[group] = split
            count += members[group]
    return placed
