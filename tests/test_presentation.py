import pytest

from tyler.engine.trajectory import Invocation
from tyler.modeling.operators import PAPER_OPERATORS
from tyler.presentation import COLOURS, MORE_COLOURS, SERIES, VERDICTS, as_text, colour_of, counted, pieces

CALLS = (
    Invocation("global", position=0, num_latents=8, action=0),
    Invocation("check", position=1, num_latents=2, action=2, offset=3),
)


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", [*COLOURS.values(), *MORE_COLOURS, *SERIES, *VERDICTS.values()])
def test_every_colour_is_read_on_white_and_on_black(colour: str) -> None:
    assert 1.05 / (luminance(colour) + 0.05) >= 4.5
    assert (luminance(colour) + 0.05) / 0.05 >= 4.5


def test_every_operator_of_the_paper_has_its_colour_and_others_have_one_by_their_name() -> None:
    assert list(COLOURS) == [operator.name for operator in PAPER_OPERATORS]
    assert len({*COLOURS.values(), *MORE_COLOURS}) == len(COLOURS) + len(MORE_COLOURS)
    assert colour_of("check") == colour_of("check")
    assert colour_of("check") in MORE_COLOURS


def test_operators_are_shown_in_their_places() -> None:
    assert list(pieces("So 4", CALLS)) == ["", CALLS[0], "So ", CALLS[1], "4"]
    assert as_text("So 4", CALLS).plain == "⟨global ×8⟩So ⟨check ×2⟩4"
    assert as_text("[b]4[/b]", ()).plain == "[b]4[/b]"


def test_one_is_singular() -> None:
    assert [counted(n, "invocation") for n in (0, 1, 2)] == ["0 invocations", "1 invocation", "2 invocations"]
