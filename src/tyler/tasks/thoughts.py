"""Where a thought ends and the answer begins: chat templates of reasoning models open the thought in the prompt."""

from __future__ import annotations

_THINK, _END_OF_THOUGHT = "<think>", "</think>"


def leaves_thought_open(prompt: str) -> bool:
    """Whether a rendered prompt ends in an open thought, as chat templates write it for reasoning models."""
    return prompt.rstrip().endswith(_THINK)


def after_thought(completion: str, *, opened: bool = False) -> str:
    """What follows the thought that a completion begins with; "" where that thought never ends.

    `opened`: the prompt has opened the thought (`leaves_thought_open`), and all up to `</think>` belongs to it. Else
    the thought is a leading `<think>...</think>`, or what stands before a `</think>` that no `<think>` precedes.
    """
    before, end, after = completion.partition(_END_OF_THOUGHT)
    if opened or before.lstrip().startswith(_THINK) or (end and _THINK not in before):
        return after
    return completion
