"""Replay without one invocation: a row's way along another answer's actions, up to the call that it leaves out."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


class Branch:
    """`actions` of V' that a row repeats, and whether it is past the invocation after them.

    Under a learned router operators are among the repeated actions, and barred for one decision after them. A fixed
    router calls its operators by itself: the row repeats the tokens, and its call of that number is not made.
    """

    def __init__(self, actions: Sequence[int], vocab_size: int, learned: bool) -> None:
        self._ahead = deque(action for action in actions if learned or action < vocab_size)
        self._calls = sum(action >= vocab_size for action in actions)
        self._learned, self._left_out = learned, False

    @property
    def next(self) -> int | None:
        """The action to repeat now; None where the row chooses for itself."""
        return self._ahead[0] if self._ahead else None

    @property
    def bars_operators(self) -> bool:
        """Whether the decision now is the one where the invocation stood."""
        return self._learned and not self._ahead and not self._left_out

    @property
    def passed(self) -> bool:
        """Whether every further action is the row's own."""
        return not self._ahead and not self.bars_operators

    def advance(self) -> None:
        """A decision has been made."""
        if self._ahead:
            self._ahead.popleft()
        elif self._learned:
            self._left_out = True

    def leaves_out(self, calls: int) -> bool:
        """Whether a fixed router's call after `calls` others is the one that is not made; it is so once."""
        if self._learned or self._left_out or calls != self._calls:
            return False
        self._left_out = True
        return True


def check_branch(
    actions: Sequence[int],
    vocab_size: int,
    offered: Sequence[bool],
    learned: bool,
    ends: Collection[int],
    budget: int | None,
) -> None:
    """Raise ValueError for actions that no answer can begin with; `offered` are the policy's operators, where the
    router is learned."""
    end = vocab_size + len(offered)
    for action in actions:
        if not 0 <= action < end or action in ends:
            raise ValueError(
                f"branch holds {action}; it may hold tokens below {vocab_size} that end no answer, and operators below "
                f"{end}"
            )
        if learned and action >= vocab_size and not offered[action - vocab_size]:
            raise ValueError(
                f"branch invokes operator {action - vocab_size}, which this model does not offer: it was removed; "
                "branch from an answer without it"
            )
    calls = sum(action >= vocab_size for action in actions)
    if budget is not None and calls > budget:
        raise ValueError(f"branch invokes {calls} operators, and budget={budget}; raise the budget")
