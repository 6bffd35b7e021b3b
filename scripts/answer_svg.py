"""Draw an answer of a model as an SVG in which tokens and operators appear as they were decoded.

    python scripts/answer_svg.py [MODEL] [QUESTION] > docs/figures/answer.svg

Without animation, and for a reader who asked for less motion, the whole answer stands there at once.
"""

import sys
from collections.abc import Iterable, Iterator

from markupsafe import escape

from tyler import Tyler
from tyler.engine.request import Event, InvocationEvent, TokenEvent
from tyler.presentation import colour_of

MODEL, QUESTION = "mini-tyler", "Tom has 50 cups. Tom sells 24. Tom gets 33. How many cups are left?"
COLUMNS, WIDTH, LINE = 62, 8.43, 26
"""Characters a line, and the size of one in pixels at 14 px."""
SECONDS = 0.12
"""Between two actions; latents take as long as an action each."""
STYLE = (
    "text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#1c1f24}"
    ".l{fill:#fff;font-weight:600}.q{fill:#57606a}"
    "g{animation:a .2s both}@keyframes a{from{opacity:0}}"
    "@media(prefers-reduced-motion){g{animation:none}}"
)


def drawn(events: Iterable[Event]) -> Iterator[tuple[float, float, float, str]]:
    """Column, line, seconds and SVG of every piece of the answer."""
    column, line, seconds = 0.0, 0.0, 0.5
    for event in events:
        if isinstance(event, InvocationEvent):
            call = event.invocation
            label, colour = f"{call.operator} ×{call.num_latents}", colour_of(call.operator)
            wide = len(label) + 2
            if column + wide > COLUMNS:
                column, line = 0.0, line + 1
            box = f'<rect y="-15" width="{(wide - 0.5) * WIDTH:.0f}" height="20" rx="6" fill="{colour}"/>'
            yield column, line, seconds, f'{box}<text class="l" x="6">{escape(label)}</text>'
            column, seconds = column + wide, seconds + SECONDS * call.num_latents
        elif isinstance(event, TokenEvent):
            for part in event.text.splitlines(keepends=True):
                word = part.rstrip("\n")
                if column + len(word) > COLUMNS:
                    column, line, word = 0.0, line + 1, word.lstrip()
                if word:
                    yield column, line, seconds, f"<text>{escape(word)}</text>"
                column, line = (0.0, line + 0.8) if part.endswith("\n") else (column + len(word), line)
            seconds += SECONDS


def svg(question: str, events: Iterable[Event]) -> str:
    """The picture: the question, the answer below it, and a frame."""
    pieces = list(drawn(events))
    height = 78 + LINE * (max(line for _, line, _, _ in pieces) + 1)
    width = WIDTH * COLUMNS + 40
    answer = "".join(
        f'<g style="animation-delay:{seconds:.2f}s" transform="translate({20 + column * WIDTH:.1f} '
        f'{80 + line * LINE:.0f})">{piece}</g>\n'
        for column, line, seconds, piece in pieces
    )
    frame = f'width="{width - 1:.0f}" height="{height - 1:.0f}" rx="10" fill="#fff" stroke="#d0d7de"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="An answer of {MODEL} with its operators in their places">\n<style>{STYLE}</style>\n'
        f'<rect x=".5" y=".5" {frame}/>\n'
        f'<text class="q" x="20" y="34" textLength="{len(question) * 7.4:.0f}">{escape(question)}</text>\n'
        f'<path d="M20 50h{width - 40:.0f}" stroke="#d0d7de"/>\n{answer}</svg>\n'
    )


def main() -> None:
    model, question = (*sys.argv[1:], *(MODEL, QUESTION)[len(sys.argv) - 1 :])
    sys.stdout.write(svg(question, Tyler.from_pretrained(model).stream(question, max_new_tokens=160)))


if __name__ == "__main__":
    main()
