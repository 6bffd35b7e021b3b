"""Linear equations in one unknown, solved in formula lines: `$3x = 22 - 7$`, `$3x = 15$`, `$x = 5$`."""

from __future__ import annotations

import random

from tyler.tasks.mini.puzzle import ANSWER, Family, Puzzle, nearby

UNKNOWNS = ("x", "y", "z", "n")
QUESTIONS = ("Solve for {v}: {e}.", "Solve {e}.", "If {e}, what is {v}?", "Find {v} when {e}.")


def _signed(number: int) -> str:
    return f"+ {number}" if number >= 0 else f"- {-number}"


def _collect(left: int, constant: int, right: int, total: int, v: str) -> list[str]:
    """The lines from `left v + constant = right v + total` to the value of v."""
    sides = f"{left}{v}" if right == 0 else f"{left}{v} - {right}{v}"
    moved = f"${sides} = {total} {_signed(-constant)}$"
    slope = left - right
    return [moved, f"${slope}{v} = {total - constant}$", f"${v} = {ANSWER}$"]


def _linear(rng: random.Random, level: int, v: str, value: int) -> tuple[str, list[str]]:
    """Levels 1 and 2: `a v + b = c`, and the unknown on both sides."""
    right = 0 if level == 1 else rng.randint(2, 6)
    left = right + rng.randint(2, 9) if level == 1 else right + rng.randint(2, 5)
    constant = rng.choice((-1, 1)) * rng.randint(1, 30)
    total = (left - right) * value + constant
    if total < 0:
        constant, total = -constant, total - 2 * constant
    tail = f"{total}" if right == 0 else f"{right}{v} {_signed(total)}"
    return f"{left}{v} {_signed(constant)} = {tail}", _collect(left, constant, right, total, v)


def _bracketed(rng: random.Random, level: int, v: str, value: int) -> tuple[str, list[str]]:
    """Levels 3 to 5: a bracket on the left, a further term beside it, a bracket on the right as well."""
    right = rng.randint(2, 5)
    left = right + rng.randint(2, 4)
    inner, outer = rng.randint(1, 9), rng.randint(1, 20) if level > 3 else 0
    hidden = rng.randint(1, 9) if level > 4 else 0
    constant = left * inner + outer
    total = (left - right) * value + constant
    beside = f" + {outer}" if outer else ""
    tail = f"{right}{v} + {total}" if not hidden else f"{right}({v} + {hidden}) {_signed(total - right * hidden)}"
    expanded = (
        f"{right}{v} + {total}" if not hidden else f"{right}{v} + {right * hidden} {_signed(total - right * hidden)}"
    )
    lines = [f"${left}{v} + {left * inner}{beside} = {expanded}$"]
    if level > 3:
        lines.append(f"${left}{v} + {constant} = {right}{v} + {total}$")
    return f"{left}({v} + {inner}){beside} = {tail}", lines + _collect(left, constant, right, total, v)


def draw(rng: random.Random, level: int) -> Puzzle:
    """An equation with a whole solution in 1..20; higher levels add the other side, brackets and terms."""
    v, value = rng.choice(UNKNOWNS), rng.randint(1, 20)
    equation, lines = (_linear if level < 3 else _bracketed)(rng, level, v, value)
    phrase = rng.randrange(len(QUESTIONS))
    return Puzzle(
        level=level,
        phrase=phrase,
        prompt=QUESTIONS[phrase].format(v=v, e=f"${equation}$"),
        lines=tuple(lines),
        shortcut=f"${v} = {ANSWER}$",
        answer=str(value),
        wrong=nearby(value, rng),
    )


ALGEBRA = Family(
    name="algebra",
    draw=draw,
    closing=f"$\\boxed{{{ANSWER}}}$",
    plain=f"So the solution is {ANSWER}.",
)
