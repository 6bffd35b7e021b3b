"""What the lens measured as tables, for a terminal and for a page: the same numbers in the same places."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tyler.evaluation.html_report import render
from tyler.lens.block import Reading, Scored
from tyler.lens.interventions import REPLACEMENTS
from tyler.lens.survey import MOVED, STATEMENTS, Estimate, Survey
from tyler.presentation import counted

NOTHING = "–"
CAUTION = (
    "Yes where a difference, paired by problem, has a 95% interval above zero; no where it is below. An answer depends "
    "on anything that stood in its context while it was decoded, an untrained block included: that alone says nothing "
    "about what was learned."
)
COSTS = (
    "Nats of log p, teacher-forced on the model's own answers; of answers that were decoded again with all latents "
    "replaced, the share with something else in its box. Teacher forcing keeps an answer on its course; decoded "
    "again it may leave it from its first token."
)
ONE_AT_A_TIME = (
    "One block at a time is replaced, teacher-forced on this answer. An effect that noise or another problem's block "
    "has too is not specific to this block."
)
CONTENT = (
    "At: visible tokens before the block. Reads as: the likeliest token at each latent. Readable: the share of latents "
    "whose token follows the block. Enough: how many of its latents, from the first on, later tokens need. Other: the "
    "same with another problem's block. Moved: how far other problems' blocks, and noise, move the answer's logits "
    "towards the answers to those problems, of the whole way."
)
INTERVALS = "Intervals are 95% and resample problems; the blocks of one problem are averaged first."
Rows = list[tuple[str, ...]]
"""The rows of a table, its heads first."""


@dataclass(frozen=True)
class Table:
    """Rows with a title, and a note below them."""

    title: str
    rows: Rows
    note: str = ""


def page(facts: dict[str, str], tables: Sequence[Table], **answer: Any) -> str:
    """Tables as a page of HTML that needs nothing else; above them an answer, if there is one."""
    return render("lens.html", title="Operator lens", facts=facts, tables=tables, **answer)


def answer_tables(readings: Sequence[Reading]) -> list[Table]:
    """Two tables with a row for each block; then for each block what can be read from it, and every effect."""
    tables = [
        Table("log p lost by the tokens that follow, in nats", loss_rows(readings), ONE_AT_A_TIME),
        Table("what is in the blocks", block_rows(readings), CONTENT),
    ]
    for number, reading in enumerate(readings, start=1):
        where = f"block {number}, {reading.operator} after {counted(reading.position, 'token')}"
        tables.append(Table(f"{where}: what can be read from it", readout_rows(reading)))
        tables.append(Table(f"{where}: what replacing it changes", effect_rows(reading)))
    return tables


def loss_rows(readings: Sequence[Reading]) -> Rows:
    """A row for each block: what each replacement costs the tokens after it."""
    rows: Rows = [("block", "at", *REPLACEMENTS)]
    for reading in readings:
        effects = [reading.effects.get(name) for name in REPLACEMENTS]
        losses = [NOTHING if effect is None else f"{effect.loss:z.2f}" for effect in effects]
        rows.append((reading.operator, str(reading.position), *losses))
    return rows


def block_rows(readings: Sequence[Reading]) -> Rows:
    """A row for each block: what its latents read as, the share that can be read as what follows here and in few other
    answers, how many are enough for every token after it, and what others' blocks carry to its place."""
    rows: Rows = [("block", "at", "reads as", "readable", "enough", "moved towards others")]
    for reading in readings:
        words = " ".join(readout.likeliest[0][0].strip() or "·" for readout in reading.readouts)
        shares = (NOTHING if share is None else f"{share:.0%}" for share in (reading.readable, reading.readable_other))
        readable = ", other ".join(shares)
        rows.append((reading.operator, str(reading.position), words, readable, enough_of(reading), carried_of(reading)))
    return rows


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
    moved, noise, whole = reading.carried.moved, reading.carried.noise, reading.carried.whole
    return f"{moved:z.2f}, noise {noise:z.2f}, of {whole:z.2f}"


def readout_rows(reading: Reading) -> Rows:
    """A row for each latent: the likeliest tokens there, those with another problem's block, the nearest embeddings."""
    rows: Rows = [("latent", "likeliest next token", "with another problem's block", "nearest embedding")]
    for slot, readout in enumerate(reading.readouts, start=1):
        control = scored(readout.control, 2) or NOTHING
        rows.append((f"z{slot}", scored(readout.likeliest, 3), control, scored(readout.nearest, 2)))
    return rows


def scored(tokens: Scored, most: int) -> str:
    """Some tokens with their scores."""
    return ", ".join(f"{token!r} {score:.2f}" for token, score in tokens[:most])


def effect_rows(reading: Reading) -> Rows:
    """A row for each replacement."""
    heads = ("replaced by", "log p lost, nats", "KL a token", "tokens flipped", "of the answer", "answer flipped")
    rows: Rows = [heads]
    for name, effect in reading.effects.items():
        of_answer = NOTHING if effect.answer_loss is None else f"{effect.answer_loss:z.2f}"
        flipped = {None: NOTHING, True: "yes", False: "no"}[effect.answer_flipped]
        shares = (f"{effect.divergence:.3f}", f"{effect.flipped:.0%}", of_answer, flipped)
        rows.append((name, f"{effect.loss:z.2f}", *shares))
    return rows


COUNTED = (
    "readable latents",
    "latents that are enough",
    "readable latents of other problem",
    "latents that are enough of other problem",
    *(f"{MOVED} {how}" for how in ("by its block", "by noise", "in all")),
    *(f"answer flipped with {name}" for name in ("means", "other problem", "no block")),
)
"""What else is counted, with its controls."""


def survey_tables(survey: Survey) -> list[Table]:
    """Everything that a survey tested and counted."""
    operators = survey.operators.values()
    tests = sum(len(operator.tested) for operator in operators)
    family = f" p: sign flips over problems, adjusted by Holm for the {tests} tests made here."
    others = [
        ("counted", *survey.operators),
        ("blocks", *(str(operator.num_blocks) for operator in operators)),
        ("share that its mean keeps", *(estimated(operator.kept) for operator in operators)),
        *(row_of(measure, survey, measure) for measure in COUNTED),
    ]
    losses = [("replaced by", *survey.operators), *(row_of(name, survey, f"loss with {name}") for name in REPLACEMENTS)]
    pairs = {question: " less ".join(filter(None, pair)) for question, pair in STATEMENTS.items()}
    return [
        Table("What is tested", tested_rows(survey), CAUTION + family),
        Table("What a replacement costs", losses, COSTS),
        Table("What else was counted", others, INTERVALS),
        Table("What the questions mean", [("asked", "what is above zero"), *pairs.items()]),
    ]


def tested_rows(survey: Survey) -> Rows:
    """A row for each statement, with its verdict for each operator."""
    operators = survey.operators.values()
    answers = ((question, *(verdict(each.tested.get(question)) for each in operators)) for question in STATEMENTS)
    return [("asked", *survey.operators), *answers]


def row_of(title: str, survey: Survey, measure: str) -> tuple[str, ...]:
    """A measure of every operator."""
    digits = 1 if "enough" in measure else 2
    return title, *(estimated(operator.measured.get(measure), digits) for operator in survey.operators.values())


def estimated(estimate: Estimate | None, digits: int = 2) -> str:
    """A mean with its interval."""
    if estimate is None:
        return NOTHING
    return f"{estimate.mean:z.{digits}f} ({estimate.low:z.{digits}f} to {estimate.high:z.{digits}f})"


def verdict(estimate: Estimate | None) -> str:
    """What a test came to: "yes, 0.84 (0.53 to 1.12), p 0.012"."""
    if estimate is None:
        return NOTHING
    return f"{estimate.verdict}, {estimated(estimate)}" + ("" if estimate.p is None else f", p {estimate.p:.2g}")
