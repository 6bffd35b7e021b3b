"""Boundaries: every trap by name, one rule online and offline, token positions on real tokenizers, fair sampling."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tyler.boundaries import placement
from tyler.boundaries.patterns import LOOKAHEAD, dollar_opens
from tyler.boundaries.placement import candidates, piece_offsets
from tyler.boundaries.rules import RULES, Boundary, Rule
from tyler.boundaries.scanner import BoundaryScanner, find_boundaries
from tyler.modeling.operators import GLOBAL, PAPER_OPERATORS, PROCEDURE, STATE, Operator

MARKS = {"answer_start": "⟨g⟩", "step": "⟨s⟩", "structure": "⟨p⟩"}


def marked(text: str) -> str:
    """The text with a mark at every boundary but the one at position 0."""
    shown, last = "", 0
    for boundary in find_boundaries(text):
        if boundary.position or boundary.rule != "answer_start":
            shown += text[last : boundary.position] + MARKS[boundary.rule]
            last = boundary.position
    return shown + text[last:]


def assert_marked(expected: str) -> None:
    """Whether the marks in `expected` are exactly the boundaries of the text without them, also by the character."""
    text = expected
    for mark in MARKS.values():
        text = text.replace(mark, "")
    assert marked(text) == expected
    assert_same_in_pieces(text, [])


def tokenizer(data_dir: Path, name: str) -> Any:
    """A real tokenizer, from the folder of real data."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(data_dir / "tokenizers" / name)


# ------------------------------------------------------------------------------------------ by example

MARKED = {
    "each cue counts once": (
        "Let me solve⟨g⟩ this. Let us solve that. Let me solve it.\nSolution:⟨g⟩ a\nSolution: b\nAnswer:⟨g⟩ c",
    ),
    "the first docstring of a code block starts an answer": (
        '⟨p⟩```python\ndef f(x):\n    """Add $1$.\n\n    1. it\n    """\n\n⟨g⟩    return x\n\n"""more"""\ny\n```\n',
    ),
    "a docstring that ends the block starts nothing": ('⟨p⟩```python\n"""only this"""\n```\nafter',),
    "a step title in bold is a step": ("**Step 1:⟨s⟩ Find x.**\na", "a\n**Step 2:⟨s⟩ Find x.** b"),
    "a marker after a blank line does not start a second step": ("We add.\n\n⟨s⟩Step 2: Then\n\n⟨s⟩3. Then",),
    "a heading and the blank line after it are one step": (
        "We add.\n\n⟨s⟩### Step 2\n\nThen\nStep 3:\n\n⟨s⟩Now\nStep 4:\n⟨s⟩Stop",
    ),
    "a step title and its text are two steps": ("We add.\n\n⟨s⟩### Step 2: Add\n\n⟨s⟩Then",),
    "blank lines and numbers in code start no steps": (
        "a\n\n⟨s⟩⟨p⟩```python\nx = 1\n\n\n1. y\n# Step 2: z\n```\n\n⟨s⟩b",
    ),
    "blank lines and numbers in display formulas start no steps": (
        "a ⟨p⟩\\[\n1. x\n\n2. y\n\\] b ⟨p⟩$$x\n\ny$$ c ⟨p⟩\\begin{align*}\n\n3. z\n\\end{align*} d",
    ),
    "blank lines before the first word start no step": ("\n\n  \nWe add.",),
    "formulas after money are found": ("It costs $5 and $1,234.50, so ⟨p⟩$x$ is ⟨p⟩$y + 5$, not $7.\n\n⟨s⟩So ⟨p⟩$z$.",),
    "the end of a formula taken for money opens nothing": (
        "Adding $1 + 2 + 3 + 4 + 5 + 6 + 7 = 28$, we get ⟨p⟩$x$.",
        "Adding $1 + 2 + 3 + 4 + 5 + 6 + 7 = 28$s and ⟨p⟩$x$.",
    ),
    "a blank line ends a formula that is never closed": (
        "So ⟨p⟩$x is 5\n\n⟨s⟩and ⟨p⟩$y$ and ⟨p⟩\\(z\n\n⟨s⟩and ⟨p⟩$w$.",
    ),
    "a formula that is never closed does not swallow the next": ("Set ⟨p⟩$HOME to ⟨p⟩$x$ and ⟨p⟩$y$.",),
    "inline code hides what looks like structure": ('Write `$x`, `a $ {"b": 1}` and `\n3. c` for ⟨p⟩$x$.',),
    "dollars in code open no structure": (
        "⟨p⟩```bash\necho $HOME $x$ \\( \n```\nand ⟨p⟩$x$",
        "⟨p⟩~~~\n$x$\n```\n$y$\n~~~\nand ⟨p⟩$x$",
        '⟨p⟩[asy]\nlabel("$x$");\n\n1. y\n[/asy] and ⟨p⟩$x$',
    ),
    "a fence closes only on one as long": ("⟨p⟩````\n```\n$x$\n```\n````\n⟨p⟩$y$",),
    "a fence opens behind a list marker": ("a\n1.⟨s⟩ ⟨p⟩```python\n$x$\n   ```\n⟨p⟩$y$",),
    "backticks that close on their line do not open a fence": ("⟨p⟩```x``` and ⟨p⟩$y$\n\n⟨s⟩Now",),
    "a latex quote hides nothing": ("the ``seven'' and ⟨p⟩$x$",),
    "every key of an object is a structure": (
        'So {⟨p⟩"answer": 5, ⟨p⟩"why": ["a", "b"],\n  ⟨p⟩"more": {⟨p⟩"x" : "$y$, {", "no\\"", 1: "z"}} and ⟨p⟩$x$',
    ),
    "keys count in json blocks and not in other code": (
        '⟨p⟩```json\n{\n  ⟨p⟩"a": 1,\n  ⟨p⟩"b": 2\n}\n```\n⟨p⟩```python\n{"a": 1}\n```\n',
    ),
    "a key too long for the lookahead counts": ('{⟨p⟩"a name that is rather long": 1, ⟨p⟩"b": 1}',),
    "an object that is never closed ends at a blank line or a fence": (
        'So {⟨p⟩"a": 1\n\n⟨s⟩and ⟨p⟩$x$',
        '⟨p⟩```json\n{⟨p⟩"a": [1\n```\nand ⟨p⟩$x$',
    ),
}
"""By what they show: texts with a mark at each of their boundaries."""


@pytest.mark.parametrize("texts", MARKED.values(), ids=MARKED)
def test_boundaries_are_where_they_are_marked(texts: tuple[str, ...]) -> None:
    for text in texts:
        assert_marked(text)


# --------------------------------------------------------------------------------------- answer starts


def test_position_0_is_an_answer_start() -> None:
    assert find_boundaries("7") == [Boundary(0, "answer_start")]


def test_the_first_feed_reports_position_0_even_before_any_text() -> None:
    scanner = BoundaryScanner()
    assert scanner.feed("") == [Boundary(0, "answer_start")]
    assert scanner.feed("7") == scanner.close() == []


@pytest.mark.parametrize(
    "expected",
    [
        "Let me solve⟨g⟩ it.", "Now let's solve⟨g⟩ it.", "Let’s think step by step⟨g⟩. Then", "Solution:⟨g⟩ We add.",
        "SOLUTION:⟨g⟩ We add.", "**Solution:**⟨g⟩ We add.", "**Solution**:⟨g⟩ We add.", "**Solution**\n⟨g⟩We add.",
        "## Solution\n\n⟨g⟩⟨s⟩We add.", "Proof.⟨g⟩ We add.", "Answer:⟨g⟩ 5", "thoughts\n</think>\n\n⟨g⟩⟨s⟩We add.",
    ],
)  # fmt: skip
def test_a_cue_starts_an_answer(expected: str) -> None:
    assert_marked(expected)


@pytest.mark.parametrize(
    "text",
    [
        "Let me solver on", "outlet me solve x", "the Solution: we add", "Solutions: 1 and 2", "Final answer: 5",
        "Solution:", "Answer:5", "## Solution to part b", "Let me solve",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_cue_starts_nothing(text: str) -> None:
    assert marked(text) == text


# ----------------------------------------------------------------------------------------------- steps


@pytest.mark.parametrize("gap", ["\n\n", "\n\n\n\n", "\n  \n", "\n \t\n\n", "\r\n\r\n"])
def test_a_run_of_blank_lines_is_one_step(gap: str) -> None:
    assert_marked(f"We add.{gap}⟨s⟩Then we stop.")


MARKERS = (
    "Step 3:", "STEP 3:", "**Step 3:**", "**Step 3**:", "### Step 3", "### Step 3:", "**Step 3**", "Step 3.",
    "Step 3 -", "### Step 3 -", "**Step 3 –", "3.", "3)", "  12.", "**3.**", "### 3.",
)  # fmt: skip


@pytest.mark.parametrize("marker", MARKERS)
def test_an_enumerated_marker_is_a_step(marker: str) -> None:
    assert_marked(f"We add.\n{marker}⟨s⟩ Then we stop.")


@pytest.mark.parametrize(
    "text",
    [
        "We get\n1.5 apples", "We get\n1,234 apples", "We get 3. Then 4. And", "so it is\n3.\nIndeed",
        "born in\n1995. Then", "see Step 3: there", "all\nStep 3 of it", "a\n- b\n* c", "version\n2.x and",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_marker_is_no_step(text: str) -> None:
    assert marked(text) == text


@pytest.mark.parametrize("tail", ["\n\n", "\n\n  ", "\n \n", "\n3. ", "\nStep 3:", "\nStep 3:\n\n"])
def test_the_end_of_the_text_has_no_boundary(tail: str) -> None:
    assert marked("We add." + tail) == "We add." + tail


# ------------------------------------------------------------------------------------------ structures


FORMULAS = (
    "$x$", "$$x$$", r"\(x\)", r"\[x\]", r"\begin{align*}x&=1\\[2ex] y\end{align*}", r"\begin{equation}x\end{equation}",
    "$5$", "$16.$", "$-14,$", "$2^2$", r"$5 \times 3$", "$.4$", "$5 + 3 = 8$", "$4x + 1$", "$1, 2, 3$", r"$10\%$",
    "$180(8-2) = 1080$", "$(0,3),$", "$|x|$", r"$\text{a \$5 bill}$", "$x\n= 1$", r"$$\frac{\$14.40}{.4}$$",
)  # fmt: skip


@pytest.mark.parametrize("formula", FORMULAS)
def test_only_the_opening_of_a_formula_is_a_structure(formula: str) -> None:
    assert_marked(f"So ⟨p⟩{formula} and ⟨p⟩{formula}.")
    assert_marked(f"So ⟨p⟩{formula}")


@pytest.mark.parametrize(
    "text",
    [
        r"It costs \$5 and \$7.", "It costs $5 and $7.", "It costs $1,234.50, or $1.", "It costs $5.", "It costs $5",
        "She has $5 + $7 = $12 now.", "She has $5+$7=$12 now.", "It is 3*$5=$<<3*5=15>>15.",
        "It is $.10 each, $60/15 hours, $2/tile and $5k.", "It is $1000 x 20/100 = $200.", "From $5-$7 to $8.", "a $ b",
        "a $",
    ],
)  # fmt: skip
def test_money_is_no_structure(text: str) -> None:
    assert marked(text) == text


@pytest.mark.parametrize("env", ["pmatrix", "document", "cases"])
def test_an_environment_that_is_no_formula_by_itself_is_no_structure(env: str) -> None:
    assert marked(rf"a \begin{{{env}}} b") == rf"a \begin{{{env}}} b"


@pytest.mark.parametrize("text", ['{"red", "blue"}', "{1, 2}", "{ }", '\\text{"a"}', '["a", "b"]', '"a": 1'])
def test_what_only_looks_like_an_object_is_no_structure(text: str) -> None:
    assert marked(f"So {text}.") == f"So {text}."


@pytest.mark.parametrize(
    "text", ["$5 + 3 + 4 + 5 + 6", "$123456789012345678", "$1 $", "$x", "$", "$.", "$<", "$ 5", "$7 a"]
)
def test_a_dollar_is_decided_within_the_lookahead_and_stays_decided(text: str) -> None:
    whole = dollar_opens(text + " " * LOOKAHEAD, 0, final=False)
    assert whole is not None
    for cut in range(len(text)):
        assert dollar_opens(text[: cut + 1], 0, final=False) in (None, whole)
    assert dollar_opens(text, 0, final=True) is not None or text == "$"


# ---------------------------------------------------------------------------------- online and offline

FRAGMENTS = (
    "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\\\", "\\$", "\\", "\\begin{align*}", "\\end{align*}", "\\beta", "\\e",
    "`", "``", "```", "```json", "```python\n", "~", "~~~", "[asy]", "[/asy]", '"""', "'''", "def f():",
    "{", "}", "[", "]", ",", ":", '"', '"a":', '"a very long name of a field"',
    "\n", "\n\n", " ", "  ", "\r\n", "\t", "3. ", "2)", "Step 3:", "### Step 2", "**Step 4:**", "Step", " -", "#",
    "**", "*", "Solution:", "**Solution**", "## Answer", "</think>", "Let me solve", " Let's think step by step.",
    "5", "1.5", "x", "and", ".", "!", "=", "+", "<<", "(", ")",
)  # fmt: skip


def online(pieces: list[str]) -> list[Boundary]:
    """What a scanner reports for the pieces, with every promise of `settled` checked on the way."""
    scanner, boundaries, settled, length = BoundaryScanner(), [], 0, 0
    for piece in pieces:
        new = scanner.feed(piece)
        length += len(piece)
        assert all(boundary.position >= settled for boundary in new)
        assert settled <= scanner.settled <= length
        settled = scanner.settled
        boundaries += new
    new = scanner.close()
    assert all(boundary.position >= settled for boundary in new)
    assert scanner.settled == length
    return boundaries + new


def assert_same_in_pieces(text: str, cuts: list[int]) -> None:
    whole = find_boundaries(text)
    spans = zip([0, *cuts], [*cuts, len(text)], strict=True)
    assert online([text[start:end] for start, end in spans]) == whole
    assert online(list(text)) == whole
    assert len(set(whole)) == len(whole)
    assert whole == sorted(whole, key=lambda boundary: boundary.position)
    assert all(boundary.position < max(1, len(text)) for boundary in whole)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_way_of_cutting_a_text_gives_the_same_boundaries(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS), max_size=40)))
    assert_same_in_pieces(text, sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6))))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_unicode_text_can_be_cut_anywhere(text: str) -> None:
    assert_same_in_pieces(text, [len(text) // 2])


def test_a_long_text_forgets_what_it_has_read_and_loses_nothing() -> None:
    text = "Some prose that goes on, for $5.\n\nStep 2: $x = 1$ and\n```python\nf()\n\n```\n3. more" * 200
    assert_same_in_pieces(text, [1000, 9000])
    scanner = BoundaryScanner()
    for piece in text:
        scanner.feed(piece)
    assert len(scanner._text) < 1000


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
def test_decoding_real_solutions_token_by_token_gives_the_same_boundaries(data_dir: Path, name: str) -> None:
    decode = tokenizer(data_dir, name)
    for path, key in (("math500_test.jsonl", "solution"), ("gsm8k_test.jsonl", "answer")):
        for line in (data_dir / path).read_text(encoding="utf-8").splitlines()[:100]:
            text = json.loads(line)[key]
            assert online([text[start:end] for start, end in spans(decode, text)]) == find_boundaries(text)


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("We add.\n\n", 9), ("We add.\n\n  ", 9), ("We get $", 7), ("We get $5", 7), ("We get $5 an", 12),
        ("We get $x", 9), ("We get \\", 7), ("We get \\beg", 7), ("We get \\bet", 11), ("We get {", 8),
        ('We get {"', 8), ("```", 3), ("``", 0), ("word", 4), ("$x + 1$", 7),
    ],
)  # fmt: skip
def test_settled_holds_back_no_more_than_it_must(text: str, settled: int) -> None:
    scanner = BoundaryScanner()
    scanner.feed(text)
    assert scanner.settled == settled


@pytest.mark.parametrize("text", ["a\n3. ", "We add.\n\n  ", "We get $5", 'We get {"'])
def test_an_empty_piece_releases_nothing(text: str) -> None:
    scanner = BoundaryScanner()
    scanner.feed(text)
    settled = scanner.settled
    assert settled < len(text)
    assert scanner.feed("") == [] and scanner.settled == settled


def test_a_closed_scanner_takes_no_more_text() -> None:
    scanner = BoundaryScanner()
    scanner.close()
    with pytest.raises(ValueError, match="start a new one"):
        scanner.feed("x")


# ---------------------------------------------------------------------------------- the table of rules


def test_only_the_rules_asked_for_are_found() -> None:
    text = "Let me solve it.\n\nSo $x$."
    for name in RULES:
        assert find_boundaries(text, [name]) == [
            boundary for boundary in find_boundaries(text) if boundary.rule == name
        ]
    assert find_boundaries(text, []) == []


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'steps'.*'answer_start', 'step', 'structure'"):
        BoundaryScanner(["steps"])


def test_a_fourth_operator_is_one_rule_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = Rule("what follows a second thought", side="after", phrases=(r"\bWait(?=\W)", r"\bLet me check(?=\W)"))
    monkeypatch.setitem(placement.RULES, "verify", verify)
    operator = Operator("verify", num_latents=2, boundary="verify")
    text = "So 5. Wait, no. Let me check it.\n\nWait, $x$."
    assert [text[: boundary.position].split()[-1] for boundary in find_boundaries(text, ["verify"])] == [
        "Wait",
        "check",
        "Wait",
    ]
    assert candidates(text, piece_offsets(list(text)), [operator])[0] == (text.index(","), operator)


def test_a_rule_of_phrases_or_headings_before_the_match_is_refused() -> None:
    for wanted in ({"phrases": (r"\bWait(?=\W)",)}, {"headings": (r"Answer:",)}):
        with pytest.raises(ValueError, match=r"'a pause' has side='before', .* after the match; write side='after'"):
            Rule("a pause", side="before", **wanted)


def test_a_rule_may_ask_for_one_kind_of_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(placement.RULES, "code", Rule("a code block", side="before", openings=frozenset({"code"})))
    text = "$x$\n```\na\n```\n"
    assert find_boundaries(text, ["code"]) == [Boundary(4, "code")]


# ---------------------------------------------------------------------------------------------- tokens


def spans(decode: Any, text: str) -> list[tuple[int, int]]:
    """The spans of a text's tokens; a character made of several tokens belongs to the last of them."""
    starts = [
        start for start, _ in decode(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    ]
    return list(zip(starts, [*starts[1:], len(text)], strict=True))


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
def test_boundaries_fall_on_the_right_tokens_of_a_real_tokenizer(data_dir: Path, name: str) -> None:
    decode = tokenizer(data_dir, name)
    text = "Let me solve it:\n\nWe get $x$, and ($y$).\n\nStep 2: So\n```python\nf()\n```\n\nDone."
    offsets = decode(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    pieces = [text[start:end] for start, end in offsets]
    assert "".join(pieces) == text
    assert piece_offsets(pieces) == [tuple(span) for span in offsets]
    assert [(pieces[token], each.boundary) for token, each in candidates(text, offsets, PAPER_OPERATORS)] == [
        ("Let", "answer_start"),
        (" it", "answer_start"),
        ("We", "step"),
        (" $", "structure"),
        (" ($", "structure"),
        ("Step", "step"),
        ("```", "structure"),
        ("Done", "step"),
    ]


TOKENS = {
    "a boundary after something skips a token that started before it": (
        [(0, 6), (6, 9), (9, 13), (13, 18)], [(9, "step"), (8, "step")], [(2, "step")],
    ),
    "a boundary before something holds back the token that contains it": (
        [(0, 2), (2, 5), (5, 6), (6, 8)], [(4, "structure")], [(1, "structure")],
    ),
    "offsets without leading spaces give the same tokens": (
        [(0, 2), (3, 5), (6, 8)], [(2, "step"), (3, "structure")], [(1, "step"), (1, "structure")],
    ),
    "a character made of several tokens starts at the first": (
        [(0, 3), (3, 3), (3, 4), (4, 5)], [(3, "step")], [(1, "step")],
    ),
    "without tokens there is no candidate": ([], [(0, "answer_start"), (3, "step")], []),
    "the position after the last token has no boundary": ([(0, 3)], [(3, "step"), (3, "structure")], []),
    "two boundaries of one rule at one token are one": ([(0, 3), (3, 4)], [(1, "step"), (2, "step")], [(1, "step")]),
}  # fmt: skip
"""Offsets of tokens, boundaries, and the tokens that these are at."""


@pytest.mark.parametrize(("offsets", "boundaries", "tokens"), TOKENS.values(), ids=TOKENS)
def test_boundaries_are_at_tokens(
    offsets: list, boundaries: list, tokens: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "find_boundaries", lambda text, rules: [Boundary(*each) for each in boundaries])
    pairs = candidates("", offsets, PAPER_OPERATORS)
    assert [(token, operator.boundary) for token, operator in pairs] == tokens


def test_a_piece_without_text_starts_where_the_next_one_does() -> None:
    assert piece_offsets(["a\n\n", "", "é", "x"]) == [(0, 3), (3, 3), (3, 4), (4, 5)]


# -------------------------------------------------------------------------------------------- sampling


def test_candidates_pair_token_positions_with_operators() -> None:
    pieces = ["We add", ".\n\n", "So", " $", "x$"]
    text = "".join(pieces)
    assert candidates(text, piece_offsets(pieces), PAPER_OPERATORS) == [(0, GLOBAL), (2, STATE), (3, PROCEDURE)]
    assert candidates(text, piece_offsets(pieces), [STATE]) == [(2, STATE)]
