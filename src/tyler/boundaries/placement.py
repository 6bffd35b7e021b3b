"""B(q, y) of the paper (Section 4.1, app:stage1): where in an answer each typed operator may be trained or invoked.

ONE rule for both uses. Stage 1 reads a whole trace with `find_boundaries`; a router feeds a `BoundaryScanner` the text
as it is decoded. Rules work on text, because real tokenizers merge `.` with the blank line after it;
`token_boundaries` maps positions to tokens. `docs/boundaries.md` says what counts, with examples, counts and errors.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random

from tyler.boundaries.rules import RULES, Boundary
from tyler.boundaries.scanner import find_boundaries
from tyler.modeling.operators import Operator


def piece_offsets(pieces: Sequence[str]) -> list[tuple[int, int]]:
    """The span of characters [start, end) of each piece of text, for tokens decoded one after another.

    A token that completes no character has an empty piece, and its span is empty.
    """
    ends = list(accumulate(map(len, pieces)))
    return list(zip([0, *ends], ends, strict=False))


def token_of(boundary: Boundary, ends: Sequence[int]) -> int:
    """The token that a boundary comes before, given where the tokens so far end (their number: the next).

    A position after something goes to the first token that starts at or after it, one before something to the token
    that holds it, even where a space comes first in that token.
    """
    if RULES[boundary.rule].side == "before":
        return bisect_right(ends, boundary.position)
    return 1 + bisect_left(ends, boundary.position) if boundary.position else 0


def token_boundaries(boundaries: Iterable[Boundary], offsets: Sequence[tuple[int, int]]) -> list[tuple[int, str]]:
    """The boundaries as (token index, rule): the operator comes before that token. In order, without repetitions.

    `offsets` are the spans of the tokens in y, from a tokenizer or from `piece_offsets`. Positions past the last token
    are dropped.
    """
    ends = [end for _, end in offsets]
    placed = ((token_of(boundary, ends), boundary.rule) for boundary in boundaries)
    return sorted(dict.fromkeys(pair for pair in placed if pair[0] < len(ends)), key=lambda pair: pair[0])


def candidates(
    text: str, offsets: Sequence[tuple[int, int]], operators: Iterable[Operator]
) -> list[tuple[int, Operator]]:
    """B(q, y), app:stage1: the pairs (b, O_k) of a token position in the answer `text` and an operator for it.

    `offsets` are the spans of the answer's tokens; b counts from the first of them. In order of b, then of `operators`.
    ValueError when an operator names a rule that RULES does not have.
    """
    chosen = tuple(operators)
    placed = token_boundaries(find_boundaries(text, {operator.boundary for operator in chosen}), offsets)
    pairs = [(token, index) for token, rule in placed for index, each in enumerate(chosen) if each.boundary == rule]
    return [(token, chosen[index]) for token, index in sorted(pairs)]


def sample_candidates(pairs: Sequence[tuple[int, Operator]], count: int, rng: Random) -> list[tuple[int, Operator]]:
    """(b, k) ~ B(q, y): `count` distinct pairs, or all when there are fewer, in the order of `pairs`.

    # Deviation: the paper does not say how it samples. Each draw takes an operator type among those that have pairs
    # left, all equally likely, and then one of its pairs; uniform over pairs would starve O_g.
    """
    left: dict[str, list[int]] = {}
    for index, (_, operator) in enumerate(pairs):
        left.setdefault(operator.name, []).append(index)
    drawn: list[int] = []
    while left and len(drawn) < count:
        name = rng.choice(list(left))
        drawn.append(left[name].pop(rng.randrange(len(left[name]))))
        if not left[name]:
            del left[name]
    return [pairs[index] for index in sorted(drawn)]
