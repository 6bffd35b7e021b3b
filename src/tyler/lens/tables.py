"""What the lens found as rows of text, for a terminal and for a page: the same numbers in the same places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tyler.engine.trajectory import Trajectory
from tyler.evaluation.html_report import render
from tyler.lens.block import Reading, Scored
from tyler.lens.interventions import REPLACEMENTS
from tyler.lens.survey import STATEMENTS, Estimate, OperatorSurvey, Survey
from tyler.presentation import as_html, colour_of, counted

NOTHING = "–"
CAUTION = (
    "Yes where a difference, paired by problem, has a 95% interval above zero; no where it is below. An answer leans "
    "on whatever stood in its context while it was decoded, an untrained block included: that alone says nothing of "
    "what was learned."
)
DECODED = (
    "Differences of shares, paired by problem. Teacher forcing holds an answer on its way by its own words; decoded "
    "again it may go another from its first token."
)
LOSSES = "log p lost by the tokens that follow, in nats"
Rows = list[tuple[str, ...]]
"""A table, its heads first."""


# -- one answer ------------------------------------------------------------------------------------------------------


def loss_rows(readings: Sequence[Reading]) -> Rows:
    """A row for each block: what each replacement costs the tokens after it."""
    found: Rows = [("block", "at", *REPLACEMENTS)]
    for one in readings:
        losses = [number(one.effects[name].loss) if name in one.effects else NOTHING for name in REPLACEMENTS]
        found.append((one.operator, str(one.position), *losses))
    return found


def block_rows(readings: Sequence[Reading]) -> Rows:
    """A row for each block: what its latents read as, how many are enough, and what others carry to its place."""
    found: Rows = [("block", "at", "reads as", "enough", "moved towards others")]
    for one in readings:
        words = " ".join(readout.likeliest[0][0].strip() or "·" for readout in one.readouts)
        found.append((one.operator, str(one.position), words, enough_of(one), carried_of(one)))
    return found


def readable_of(reading: Reading) -> str:
    """The share of readable latents, and with another problem's block: "38%, other 25%"."""
    own, other = (NOTHING if share is None else f"{share:.0%}" for share in (reading.readable, reading.readable_other))
    return f"{own}, other {other}"


def enough_of(reading: Reading) -> str:
    """How many of its latents are enough, and of another problem's block: "1 of 8, other 3"."""
    own = f"{reading.enough} of {reading.num_latents}"
    if "other problem" not in reading.effects:
        return own
    return f"{own}, other {NOTHING if reading.enough_other is None else reading.enough_other}"


def carried_of(reading: Reading) -> str:
    """What other problems' blocks move, and noise, of the way to their answers: "0.1, noise 0.0, of 5.2"."""
    if reading.carried is None:
        return NOTHING
    one = reading.carried
    return f"{number(one.moved)}, noise {number(one.noise)}, of {number(one.whole)}"


def readout_rows(reading: Reading) -> Rows:
    """A row for each latent: the likeliest tokens there, those with another problem's block, the nearest embeddings."""
    found: Rows = [("latent", "likeliest next token", "with another problem's block", "nearest embedding")]
    for place, one in enumerate(reading.readouts, start=1):
        likeliest, control, nearest = scored(one.likeliest, 3), scored(one.control, 2), scored(one.nearest, 2)
        found.append((f"z{place}", likeliest, control or NOTHING, nearest))
    return found


def scored(tokens: Scored, most: int) -> str:
    """Some tokens with their scores."""
    return ", ".join(f"{token!r} {score:.2f}" for token, score in tokens[:most])


def effect_rows(reading: Reading) -> Rows:
    """A row for each replacement."""
    found: Rows = [
        ("replaced by", "log p lost, nats", "KL a token", "tokens flipped", "of the answer", "answer flipped")
    ]
    for name, one in reading.effects.items():
        of_answer = NOTHING if one.answer_loss is None else number(one.answer_loss)
        flipped = NOTHING if one.answer_flipped is None else "yes" if one.answer_flipped else "no"
        found.append((name, number(one.loss), f"{one.divergence:.3f}", f"{one.flipped:.0%}", of_answer, flipped))
    return found


def answer_page(name: str, question: str, answer: Trajectory, readings: Sequence[Reading]) -> str:
    """One answer and every block of it under the lens, as a page of HTML that needs nothing else."""
    blocks = [
        {
            "title": f"{one.operator} after {counted(one.position, 'token')}",
            "colour": colour_of(one.operator),
            "readouts": readout_rows(one),
            "effects": effect_rows(one),
            "notes": [
                f"Latents that can be read as what follows here and in few other answers: {readable_of(one)}",
                f"Enough for every token after it to stay the likeliest: {enough_of(one)}",
                f"Moved towards other problems' answers, in nats: {carried_of(one)}",
            ],
        }
        for one in readings
    ]
    facts = {"model": name, "answer": answer.summary()}
    traced = as_html(answer.text, answer.invocations)
    return render("lens.html", title="Operator lens", facts=facts, question=question, traced=traced, blocks=blocks)


# -- many answers ----------------------------------------------------------------------------------------------------


def replaced_rows(found: Survey) -> Rows:
    """A row for each replacement, a column for each operator."""
    rows: Rows = [("replaced by", *found.operators)]
    for name in REPLACEMENTS:
        losses = [one.effects[name]["loss"] if name in one.effects else None for one in found.operators.values()]
        rows.append((name, *(estimated(loss) for loss in losses)))
    return rows


def tested_rows(found: Survey) -> Rows:
    """A row for each statement, with its verdict for each operator."""
    rows: Rows = [("asked", *found.operators)]
    for statement in STATEMENTS:
        tested = [one.tested.get(statement.question) for one in found.operators.values()]
        rows.append((statement.question, *(verdict(one) for one in tested)))
    return rows


def meant_rows() -> Rows:
    """What each statement is, in numbers."""
    return [("asked", "what is above zero"), *((one.question, one.difference) for one in STATEMENTS)]


def other_rows(found: Survey) -> Rows:
    """What else is counted, with its controls: what can be read, what is enough, what is carried, what means keep."""
    rows: Rows = [("counted", *found.operators)]

    def add(title: str, of: Mapping[str, Estimate | None], digits: int = 2) -> None:
        rows.append((title, *(estimated(of[name], digits) for name in found.operators)))

    def each(measure: str, key: str) -> dict[str, Estimate | None]:
        return {name: getattr(one, measure).get(key) for name, one in found.operators.items()}

    rows.append(("blocks", *(str(one.num_blocks) for one in found.operators.values())))
    add("share that its mean keeps", {name: one.kept for name, one in found.operators.items()})
    for key, words in (("own", ""), ("other problem", ", another problem's block")):
        add(f"readable latents{words}", each("readable", key))
        add(f"latents that are enough{words}", each("enough", key), 1)
    for key, words in (("moved", "by its block"), ("noise", "by noise"), ("whole", "all of the way")):
        add(f"moved towards another's answer {words}, nats", each("carried", key))
    for name in ("means", "other problem", "no block"):
        flips = {key: measured(one, name, "answer_flipped") for key, one in found.operators.items()}
        add(f"answers that flip with {name}, share", flips)
    return rows


def decoded_rows(found: Survey) -> Rows:
    """The share of answers that keep what is in their box when all latents are replaced and they are decoded again."""
    return [("replaced by", "same answer"), *((name, estimated(one)) for name, one in found.decoded.items())]


def decoded_tested_rows(found: Survey) -> Rows:
    """What is tested of these shares."""
    return [("asked", "decoded again"), *((question, verdict(one)) for question, one in found.decoded_tested.items())]


def measured(one: OperatorSurvey, replacement: str, measure: str) -> Estimate | None:
    """A measure of a replacement, where it was measured."""
    return one.effects.get(replacement, {}).get(measure)


def number(value: float) -> str:
    """Two decimals, and no minus before nothing."""
    return f"{0.0 if abs(value) < 0.005 else value:.2f}"


def estimated(one: Estimate | None, digits: int = 2) -> str:
    """A mean with its interval."""
    if one is None:
        return NOTHING
    mean, low, high = (0.0 if abs(value) < 0.5 * 10**-digits else value for value in (one.mean, one.low, one.high))
    return f"{mean:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def verdict(one: Estimate | None) -> str:
    """What a test came to: "yes, 0.84 (0.53 to 1.12), p 0.012"."""
    if one is None:
        return NOTHING
    return f"{one.verdict}, {estimated(one)}" + ("" if one.p is None else f", p {one.p:.2g}")


def survey_page(name: str, asked: str, found: Survey) -> str:
    """What a set of answers shows, as a page of HTML that needs nothing else."""
    facts = {"model": name, "problems": asked, "answers with operators": str(found.num_problems)}
    return render("lens.html", title="Operator lens", facts=facts, tables=survey_tables(found))


def survey_tables(found: Survey) -> list[dict[str, Any]]:
    """Its tables, each with a title and a note."""
    tests = sum(len(one.tested) for one in found.operators.values()) + len(found.decoded_tested)
    family = f" p: sign flips over problems, adjusted by Holm for the {counted(tests, 'test')} made here."
    return [
        {
            "title": "What is tested",
            "rows": tested_rows(found),
            "note": CAUTION + family,
        },
        {
            "title": "What a replacement costs",
            "rows": replaced_rows(found),
            "note": f"{LOSSES.capitalize()}, teacher-forced on the model's own answers.",
        },
        {
            "title": "What else was counted",
            "rows": other_rows(found),
            "note": "Intervals are 95% and resample problems; the blocks of one problem are averaged first.",
        },
        {
            "title": "Decoded again",
            "rows": decoded_rows(found),
            "note": "The share of answers with a box that have the same in it when all latents are replaced.",
        },
        {"title": "What that tests", "rows": decoded_tested_rows(found), "note": DECODED},
        {"title": "What the questions mean", "rows": meant_rows(), "note": ""},
    ]
