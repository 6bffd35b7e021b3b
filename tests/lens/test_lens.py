"""The lens measures what replacing a block changes, and shows nothing where there is nothing."""

import json
import runpy
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from tests import tiny

from tyler.cli import main
from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries, Forced, Never
from tyler.engine.trajectory import Trajectory
from tyler.evaluation.pass_at_1 import answer_of
from tyler.lens import stored
from tyler.lens import survey as surveys
from tyler.lens import tables as lens_tables
from tyler.lens.block import (
    TOGETHER,
    Gap,
    Rescored,
    boxed_actions,
    carried,
    distinctive,
    effect,
    enough,
    places_of,
    read_block,
    read_blocks,
    read_together,
    rescore,
    with_block,
)
from tyler.lens.interventions import NAMED, REPLACEMENTS, Blocks, before, blocks_of, replacements, synthesized
from tyler.lens.survey import MOVED, STATEMENTS, Estimate, Survey, bootstrap, count, kept_answers, survey
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import PAPER_OPERATORS
from tyler.modeling.synthesis import Heads
from tyler.tasks import load_problems
from tyler.tasks.answers.boxed import boxed_answer

PROBLEMS = [problem.prompt for problem in load_problems("mini", "dev", count=6)]


@pytest.fixture(scope="module")
def model() -> Tyler:
    return Tyler.from_pretrained("mini-tyler")


@pytest.fixture(scope="module")
def answers(model: Tyler) -> list[Trajectory]:
    return model.solve(PROBLEMS, router=AtBoundaries(only=("global",)), max_new_tokens=160)


@pytest.fixture(scope="module")
def typed(model: Tyler) -> list[Trajectory]:
    """Answers with all operators in them."""
    return model.solve(PROBLEMS, router=AtBoundaries(), max_new_tokens=160)


def rescored(model: Tyler, answer: Trajectory, index: int) -> Rescored:
    return rescore(model, [(answer, index)])[0]


# ------------------------------------------------------------------------------------------------- teacher forcing


def test_teacher_forcing_gives_the_log_probabilities_of_decoding(model: Tyler, typed: list[Trajectory]) -> None:
    for answer in typed:
        last = answer.num_invocations - 1
        for index, found in zip((0, last), rescore(model, [(answer, 0), (answer, last)]), strict=True):
            behind = range(answer.invocations[index].action + 1, len(answer.actions))
            decoded = [answer.logprobs[place] for place in behind if not answer.is_operator[place]]
            assert found.logprobs.gather(1, found.tokens[:, None])[:, 0].tolist() == pytest.approx(decoded, abs=1e-3)


def test_a_pass_over_many_answers_is_that_over_each(model: Tyler, typed: list[Trajectory]) -> None:
    asked = [(answer, index) for answer in typed for index in range(answer.num_invocations)]
    for (answer, index), found in zip(asked, rescore(model, asked), strict=True):
        alone = rescored(model, answer, index)
        assert found.actions == alone.actions and torch.equal(found.tokens, alone.tokens)
        assert torch.allclose(found.logprobs, alone.logprobs, atol=1e-3)
        assert torch.allclose(found.at_block, alone.at_block, atol=1e-3)


def test_the_actions_of_a_box_write_what_stands_in_it(model: Tyler, typed: list[Trajectory]) -> None:
    for answer in typed:
        boxed = [answer.actions[place] for place in boxed_actions(model, answer)]
        assert model.backbone.tokenizer.decode(boxed).strip("{}") == boxed_answer(answer.text)
    cut = model.solve(PROBLEMS[0], max_new_tokens=4)
    assert boxed_actions(model, cut) == ()


# --------------------------------------------------------------------------------------------------- replacements


def test_an_operator_synthesized_plainly_is_what_the_answer_holds(model: Tyler, typed: list[Trajectory]) -> None:
    seen = set()
    for answer in typed:
        for index, (call, latents) in enumerate(zip(answer.invocations, answer.latents, strict=True)):
            context = before(model, answer, index)
            found = synthesized(model.synthesizer.decoder, model.heads[call.operator], context)
            assert torch.allclose(found, latents, atol=1e-3)
            seen.add(call.operator)
    assert seen == {"global", "state", "procedure"}


def test_what_takes_a_blocks_place_is_what_its_name_says(model: Tyler, typed: list[Trajectory]) -> None:
    answer, others = typed[0], blocks_of(typed[1:])
    index = next(place for place, call in enumerate(answer.invocations) if call.operator == "state")
    latents = answer.latents[index]
    found = replacements(model, answer, index, others, torch.Generator().manual_seed(0))
    assert tuple(found) == REPLACEMENTS
    assert not found["zeros"].any() and len(found["no block"]) == 0
    assert torch.allclose(found["noise"].norm(dim=-1), latents.norm(dim=-1), rtol=1e-4)
    assert torch.allclose(found["means"], sum(others["state"]) / len(others["state"]), atol=1e-6)
    assert any(torch.equal(found["other problem"], one) for one in others["state"])
    context = before(model, answer, index)
    procedure = synthesized(model.synthesizer.decoder, model.heads["procedure"], context)
    assert torch.equal(found["other operator"], procedure), "the operator after it in the model's order"
    again = replacements(model, answer, index, others, torch.Generator().manual_seed(0))
    assert all(torch.equal(found[name], again[name]) for name in found)
    assert found["untrained"].shape == latents.shape and not torch.allclose(found["untrained"], latents, atol=0.1)


def test_what_there_is_nothing_to_take_from_is_absent(model: Tyler, answers: list[Trajectory]) -> None:
    (reading,) = read_blocks(model, answers[0], [])
    assert set(reading.effects) == set(REPLACEMENTS) - {"means", "other problem"}
    assert (reading.readable_other, reading.enough_other, reading.carried) == (None, None, None)
    assert all(not one.control for one in reading.readouts)


# -------------------------------------------------------------------------------------------------- measurements


def test_an_effect_is_its_sums(model: Tyler, answers: list[Trajectory]) -> None:
    truth, boxed = rescored(model, answers[0], 0), boxed_actions(model, answers[0])
    other = rescored(model, with_block(answers[0], 0, torch.zeros_like(answers[0].latents[0])), 0)
    found = effect(truth, other, boxed)
    rows = list(zip(truth.logprobs, other.logprobs, truth.tokens.tolist(), truth.actions, strict=True))
    divergence = sum(float(p.exp() * (p - q)) for one, two, _, _ in rows for p, q in zip(one, two, strict=True))
    assert found.divergence == pytest.approx(divergence / len(rows), rel=1e-3, abs=1e-6)
    assert found.loss == pytest.approx(sum(float(one[y] - two[y]) for one, two, y, _ in rows), abs=1e-4)
    of_answer = [float(one[y] - two[y]) for one, two, y, place in rows if place in boxed]
    assert found.answer_loss == pytest.approx(sum(of_answer), abs=1e-4) and of_answer
    assert found.flipped == sum(int(one.argmax()) != int(two.argmax()) for one, two, _, _ in rows) / len(rows)


def test_every_block_is_read_with_every_control(model: Tyler, answers: list[Trajectory]) -> None:
    (reading,) = read_blocks(model, answers[0], answers[1:])
    assert (reading.operator, reading.position, reading.num_latents) == ("global", 0, 8)
    assert tuple(reading.effects) == REPLACEMENTS
    assert len(reading.readouts) == 8 and 0 <= reading.enough <= 8
    for readout in reading.readouts:
        scores = [score for _, score in readout.likeliest]
        assert scores == sorted(scores, reverse=True) and 0 < scores[0] <= 1
        assert len(readout.control) == len(readout.likeliest)
    json.dumps(asdict(reading))


def test_enough_latents_keep_every_token_and_fewer_do_not(model: Tyler) -> None:
    fewest = []
    problems = [problem.prompt for problem in load_problems("mini", "dev", count=12)]
    for answer in model.solve(problems, max_new_tokens=160):
        truth = rescored(model, answer, 0)
        latents = answer.latents[0]
        found = enough(Gap(model, answer, 0), truth, latents)
        assert found is not None
        flips = [
            effect(truth, rescored(model, with_block(answer, 0, latents[:size]), 0)).flipped
            for size in range(found + 1)
        ]
        assert flips[-1] == 0 and all(flips[:-1])
        fewest.append(found)
    assert max(fewest) > 0


def test_all_blocks_at_once_are_every_block_replaced(model: Tyler, typed: list[Trajectory]) -> None:
    answer, others = typed[0], typed[1:]
    found = read_together(model, answer, others, torch.Generator().manual_seed(0))
    assert (found.operator, found.num_latents, found.readouts) == (TOGETHER, answer.num_latents, ())
    assert set(found.effects) == {"zeros", "means", "noise", "other problem", "no block"}
    truth, boxed = rescored(model, answer, 0), boxed_actions(model, answer)
    changed = {"zeros": answer, "no block": answer}
    for index, latents in enumerate(answer.latents):
        changed["zeros"] = with_block(changed["zeros"], index, latents * 0)
        changed["no block"] = with_block(changed["no block"], index, latents[:0])
    for name, one in changed.items():
        assert found.effects[name].loss == pytest.approx(effect(truth, rescored(model, one, 0), boxed).loss, abs=1e-3)
    alone = read_block(model, answer, 0, others, torch.Generator().manual_seed(0))
    assert found.effects["no block"].loss > alone.effects["no block"].loss


def test_noise_follows_from_the_seed(model: Tyler, answers: list[Trajectory]) -> None:
    first, again = (read_blocks(model, answers[0], answers[1:], seed=3)[0].effects["noise"] for _ in range(2))
    assert first == again != read_blocks(model, answers[0], answers[1:], seed=4)[0].effects["noise"]


def test_tokens_that_half_of_the_others_have_are_not_ones_own(answers: list[Trajectory]) -> None:
    own, others = answers[0].actions, answers[1:]
    found = distinctive(torch.tensor(own), others).tolist()
    assert found == [token for token in own if sum(token in one.actions for one in others) < len(others) / 2]
    assert 0 < len(found) < len(own)


def test_what_is_carried_is_a_difference_of_logits(model: Tyler, answers: list[Trajectory]) -> None:
    receiver, donor = answers[0], next(one for one in answers[1:] if places_of(Gap(model, answers[0], 0), one))
    truth = rescored(model, receiver, 0)
    silent = rescored(model, with_block(receiver, 0, receiver.latents[0] * 0), 0)
    found = carried(Gap(model, receiver, 0), truth, silent, [donor])
    boxes = zip(boxed_actions(model, receiver), boxed_actions(model, donor), strict=False)
    own, foreign = next((a, b) for a, b in boxes if receiver.actions[a] != donor.actions[b])

    def margin(answer: Trajectory, place: int) -> float:
        found = rescored(model, answer, 0)
        logprobs = found.logprobs[found.actions.index(place)]
        return float(logprobs[donor.actions[foreign]] - logprobs[receiver.actions[own]])

    start = margin(receiver, own)
    assert found is not None and found.donors == 1
    assert found.whole == pytest.approx(margin(donor, foreign) - start, abs=1e-3)
    assert found.moved == pytest.approx(margin(with_block(receiver, 0, donor.latents[0]), own) - start, abs=1e-3)
    assert found.noise == pytest.approx(margin(with_block(receiver, 0, receiver.latents[0] * 0), own) - start, abs=1e-3)
    assert found.whole > 1
    assert carried(Gap(model, receiver, 0), truth, silent, [receiver]) is None, "the answer itself is no other answer"


# -------------------------------------------------------------------------------------------------- many problems


DEPENDS, MEAN = "Does the answer depend on it?", "Does its mean do more than no block?"
OF_PROBLEM = "Does it depend on its problem?"
LEARNED, READ = "Does it do what an untrained operator does not?", "Can what follows be read from it?"


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A survey decodes nothing again: what comes of that has tests of its own."""
    monkeypatch.setattr(surveys, "kept_answers", lambda *_, **__: {})


@pytest.mark.usefixtures("once")
def test_the_lens_finds_what_the_study_found_by_hand(model: Tyler) -> None:
    """On mini answers depend on global's block, and its mean keeps most of what it does."""
    problems = [problem.prompt for problem in load_problems("mini", "dev", count=12)]
    one = survey(model, problems, max_new_tokens=160).operators["global"]
    assert one.tested[DEPENDS].verdict == one.tested[MEAN].verdict == one.tested[LEARNED].verdict == "yes"
    assert one.kept is not None and 0.5 < one.kept.low <= one.kept.mean <= one.kept.high < 1


def test_decoded_again_zeros_are_worse_than_nothing_and_means_keep_most(
    model: Tyler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveys, "INTERVENTIONS", {"zeros": "zeros", "means": "means"})
    problems = [problem.prompt for problem in load_problems("mini", "dev", count=60)]
    own = model.solve(problems, max_new_tokens=110, slots=64)
    assert sum(not one.truncated for one in own) > 55, "the others say nothing of what is kept"
    kept = kept_answers(model, problems, own, max_new_tokens=110)
    without = kept["no block"]
    assert bootstrap([one - other for one, other in zip(without, kept["zeros"], strict=True)]).mean > 0.05
    assert bootstrap([one - other for one, other in zip(kept["means"], without, strict=True)]).verdict == "yes"
    assert bootstrap(kept["means"]).mean > 0.8


@pytest.mark.usefixtures("once")
def test_nothing_shows_where_nothing_was_trained() -> None:
    """Every score of untrained operators is near its control; only that answers depend on them has none in it."""
    torch.manual_seed(0)
    model = Tyler.start(Backbone.load("mini"), PAPER_OPERATORS)
    problems = [problem.prompt for problem in load_problems("mini", "dev", count=16)]
    found = survey(model, problems, router=AtBoundaries(), max_new_tokens=160)
    assert list(found.operators) == ["global", "procedure", "state", TOGETHER]
    for name in ("global", "procedure", "state"):
        one = found.operators[name]
        assert one.tested[OF_PROBLEM].verdict == one.tested[READ].verdict == "not clear"
        assert abs(one.tested[LEARNED].mean) < 0.2, "nats, where an answer depends on a block by one to three"
        moved, noise, whole = (one.measured[f"{MOVED} {how}"].mean for how in ("by its block", "by noise", "in all"))
        assert abs(moved - noise) < 0.05 * whole
        own, other = (one.measured[f"readable latents{whose}"].mean for whose in ("", " of other problem"))
        assert abs(own - other) < 0.05
    assert found.operators["global"].tested[DEPENDS].verdict == "yes"


def test_blocks_of_one_problem_are_averaged_first(model: Tyler, answers: list[Trajectory]) -> None:
    one, other, *_ = [read_block(model, answers[0], 0, answers[1:], torch.Generator().manual_seed(s)) for s in (0, 1)]
    alone = read_blocks(model, answers[1], answers[2:])[0]
    found = count([[one, other], [alone]]).operators["global"].measured["loss with noise"]
    first = (one.effects["noise"].loss + other.effects["noise"].loss) / 2
    assert (found.mean, found.count) == (pytest.approx((first + alone.effects["noise"].loss) / 2), 2)


def test_an_answer_is_kept_where_the_same_stands_in_its_box(model: Tyler) -> None:
    own = model.solve(PROBLEMS, max_new_tokens=160)
    kept = kept_answers(model, PROBLEMS, own, max_new_tokens=160)
    assert list(kept) == ["zeros", "means", "noise", "other problem", "no block"]
    plain = model.solve(PROBLEMS, max_new_tokens=160, router=Never())
    pairs = [(boxed_answer(one.text), boxed_answer(other.text)) for one, other in zip(own, plain, strict=True)]
    assert kept["no block"] == [float(one == other) for one, other in pairs if one is not None]
    assert 0 < sum(kept["no block"]) < len(kept["no block"])
    tested = count([], kept).operators[surveys.DECODED].tested
    gained = fmean(b - a for a, b in zip(kept["zeros"], kept["no block"], strict=True))
    assert tested["Are zeros in its place worse than no block?"].mean == pytest.approx(gained)
    assert tested["Does it do more than its mean?"].mean == pytest.approx(1 - fmean(kept["means"]))


def test_no_answer_is_decoded_again_with_its_own_latents(model: Tyler, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [problem.prompt for problem in load_problems("mini", "dev", count=6)]
    own = model.solve(problems, max_new_tokens=160)
    pools, asked = list[Blocks](), list[list[str]]()

    def shuffled(model: Tyler, blocks: Blocks) -> Heads:
        pools.append(blocks)
        return model.heads

    def solve(changed: Tyler, texts: list[str], **settings: Any) -> list[Trajectory]:
        asked.append(texts)
        return [own[problems.index(text)] for text in texts]

    monkeypatch.setattr(Tyler, "solve", solve)
    monkeypatch.setattr(surveys, "INTERVENTIONS", {"other problem": "shuffled"})
    monkeypatch.setitem(NAMED, "shuffled", shuffled)
    kept = kept_answers(model, problems, own, max_new_tokens=160)
    boxed = [problem for problem, answer in zip(problems, own, strict=True) if boxed_answer(answer.text) is not None]
    assert kept["other problem"] == [1.0] * len(boxed) and sorted(asked[0] + asked[1]) == sorted(boxed)
    for half, pool in enumerate(pools):
        mine, others = blocks_of(own[half::2]), blocks_of(own[1 - half :: 2])
        assert "global" in mine.keys() & others.keys()
        for name, blocks in pool.items():
            assert [id(block) for block in blocks] == [id(block) for block in others.get(name, mine.get(name, []))]


def test_a_verdict_is_where_the_interval_lies() -> None:
    told = [(0.1, 0.5, 9), (-0.5, -0.1, 9), (-0.1, 0.1, 9), (0.1, 0.5, 5)]
    assert [Estimate(0.0, low, high, size).verdict for low, high, size in told] == ["yes", "no", "not clear", "too few"]


def test_a_page_has_every_number_of_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "lens.html"
    command = ["lens", "mini-tyler", "--split", "dev", "--count", "6"]
    assert main.main([*command, "--page", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["num_problems"] == 6 and set(told["operators"]["global"]["tested"]) == {*STATEMENTS}
    html = page.read_text()
    loss = told["operators"]["global"]["measured"]["loss with zeros"]
    assert f"{loss['mean']:.2f} ({loss['low']:.2f} to {loss['high']:.2f})" in html
    assert "http" not in html.replace("http-equiv", "")
    assert main.main([*command[:2], PROBLEMS[0], *command[2:], "--page", str(page)]) == 0
    html, shown = page.read_text(), capsys.readouterr().out
    assert "global" in shown and 'class="op"' in html and "no block" in html


def test_a_survey_needs_two_answers_with_operators(model: Tyler) -> None:
    with pytest.raises(ValueError, match="1 of 1 answers invoked an operator; at least 2"):
        survey(model, PROBLEMS[:1], max_new_tokens=30)


# ------------------------------------------------------------------------------------------------ answers of the store


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of six problems."""
    folder = tmp_path_factory.mktemp("evaluated")
    command = ["eval", "mini-tyler", "--split", "dev", "--count", "6", "--max-new-tokens", "160"]
    assert main.main([*command, "--output", str(folder)]) == 0
    return folder


def test_an_answer_of_the_store_is_read_again_as_it_was_decoded(model: Tyler, typed: list[Trajectory]) -> None:
    for problem, answer in zip(load_problems("mini", "dev", count=6), typed, strict=True):
        request = stored.repeating(model, answer_of(problem, answer), AtBoundaries())
        assert request is not None
        (again,) = model.engine().run([request])
        assert len(again.latents) > 1 and again.logprobs == pytest.approx(answer.logprobs, abs=1e-3)
        for name in ("prompt_ids", "actions", "is_operator", "invocations", "text", "finish_reason"):
            assert getattr(again, name) == getattr(answer, name)
        for found, kept in zip(again.latents, answer.latents, strict=True):
            assert torch.allclose(found, kept, atol=1e-3)


def test_the_lens_reads_the_answers_of_an_evaluation_and_decodes_none(
    evaluated: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["lens", "mini-tyler", "--max-new-tokens", "160", "--count", "6", "--json"]
    monkeypatch.setattr(surveys, "kept_answers", lambda *_, **__: {})
    assert main.main([*command, "--split", "dev"]) == 0
    decoded = json.loads(capsys.readouterr().out)
    monkeypatch.setattr(Tyler, "solve", lambda *_, **__: pytest.fail("it decodes"))
    assert main.main([*command, "--answers", str(evaluated)]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["problems"] == f"6 of {evaluated}" and read["num_problems"] == decoded["num_problems"]
    assert read["operators"].keys() == decoded["operators"].keys()
    for name, operator in read["operators"].items():
        for measure, estimate in operator["measured"].items():
            other = decoded["operators"][name]["measured"][measure]
            assert estimate["mean"] == pytest.approx(other["mean"], abs=0.01), (name, measure)


@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("weights", "0", "weights '0', here '"),
        ("method_settings", {"budget": 1}, "method_settings {'budget': 1}, here .*Learned"),
        ("instruction", "Be brief.", "instruction 'Be brief.', here ''"),
        ("sampling", {"temperature": 0.5}, "sampling .*0.5"),
        ("tokenizer", "0", "tokenizer '0', here '"),
    ],
)
def test_answers_under_other_settings_are_refused(
    setting: str, value: object, why: str, evaluated: Path, tmp_path: Path, model: Tyler
) -> None:
    folder = shutil.copytree(evaluated, tmp_path / "other")
    settings = json.loads((folder / "settings.json").read_text()) | {setting: value}
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=f"holds answers under other settings: {why}"):
        stored.answers_in(folder, model, router=None, max_new_tokens=160)


def test_what_the_store_lacks_cannot_be_read_again(model: Tyler, typed: list[Trajectory]) -> None:
    kept = answer_of(load_problems("mini", "dev", count=1)[0], typed[0])
    for lacking in ({"text": None}, {"invocations": None}, {"prompt": ""}, {"visible_tokens": 3}):
        assert stored.repeating(model, replace(kept, **lacking), None) is None


@pytest.mark.parametrize("length", [1, 2])
def test_a_block_at_the_end_of_an_answer_has_nothing_behind_it(length: int) -> None:
    tyler = tiny.tyler("qwen3")
    prompts = [tiny.ids(text) for text in tiny.PROMPTS]
    router = Forced({length - 1: ("state",)})
    answers = tyler.engine().run([Request(prompt, router=router, max_new_tokens=length) for prompt in prompts])
    (reading,) = read_blocks(tyler, answers[0], answers[1:])
    assert answers[0].is_operator[-1] and not answers[0].is_operator[:-1].count(True)
    assert {one.loss for one in reading.effects.values()} == {0.0}
    assert (reading.readable, reading.enough, reading.carried) == (0.0, 0, None)
    assert len(reading.readouts) == 3


def test_an_answer_without_operators_is_refused(model: Tyler) -> None:
    plain = model.solve(PROBLEMS[0], budget=0, max_new_tokens=20)
    with pytest.raises(ValueError, match="invoked no operator; give a router that does"):
        read_blocks(model, plain, {})


def test_the_bootstrap_brackets_the_mean() -> None:
    estimate = bootstrap([0.0, 1.0] * 50)
    assert estimate.mean == 0.5 and 0.38 < estimate.low < 0.45 and 0.55 < estimate.high < 0.62
    assert bootstrap([2.0, 2.0]) == bootstrap([2.0, 2.0])


def test_the_tests_of_a_survey_are_one_family_with_adjusted_p_values() -> None:
    clear, unclear = surveys.tested_mean([0.5] * 20), surveys.tested_mean([1.0, -1.0] * 10)
    assert clear.p == 2 / 2**20 and unclear.p == 1.0
    families = [{"a": clear, "b": unclear}, {"a": surveys.tested_mean([1.0] * 6)}]
    surveys.adjust(families)
    assert [one.p for tests in families for one in tests.values()] == pytest.approx([3 * 2 / 2**20, 1.0, 2 / 32])
    assert lens_tables.verdict(families[1]["a"]) == "yes, 1.00 (1.00 to 1.00), p 0.062"
    alike = {name: [1.0] * 50 for name in (*surveys.INTERVENTIONS, "no block")}
    nothing = count([], alike).operators[surveys.DECODED].tested["Are zeros in its place worse than no block?"]
    assert (nothing.mean, nothing.p, nothing.verdict) == (0.0, 1.0, "not clear") and nothing.high == -nothing.low > 0.05


@pytest.fixture
def lens_page(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "scripts" / "reference" / "lens.py"))


@pytest.mark.parametrize("name", ["mini-tyler", "mini-stage-1", "smollm2-stage-1"])
def test_the_tables_have_the_verdicts_of_their_records(name: str, root: Path, lens_page: dict[str, Any]) -> None:
    file = root / "docs" / "results" / "lens.json"
    text = "\n".join(lens_page["section"](file))
    told = json.loads(file.read_text())[name]
    assert told["num_problems"] >= 60
    content = json.dumps(asdict(lens_page["surveys"](file)[name]))
    read = json.loads(content, object_hook=lambda item: {key: item[key] for key in item if item[key] or key != "p"})
    assert read == {key: told[key] for key in Survey.__dataclass_fields__}, "records that are older have no p"
    for question in STATEMENTS:
        tested = [one["tested"].get(question) for one in told["operators"].values()]
        cells = [lens_tables.verdict(Estimate(**one) if one else None) for one in tested]
        assert f"| {' | '.join([question, *cells])} |" in text
    for measure, share in told["operators"][surveys.DECODED]["measured"].items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {measure.removeprefix('loss with ')} | "))
        assert lens_tables.estimated(Estimate(**share)) in row


def test_the_page_quotes_the_records(root: Path, lens_page: dict[str, Any]) -> None:
    text = (root / "docs" / "lens.md").read_text()
    read = lens_page["surveys"](root / "docs" / "results" / "lens.json")
    kept = {name: one.operators["global"].kept for name, one in read.items()}
    for one in (kept["mini-tyler"], kept["mini-stage-1"]):
        assert f"{one.mean:.0%} ({100 * one.low:.0f} to {100 * one.high:.0f})" in text
    decoded = [read[name].operators[surveys.DECODED].measured for name in ("mini-tyler", "mini-stage-1")]
    stage2, stage1 = (
        {lost.removeprefix("loss with "): round(100 * (1 - share.mean), 1) for lost, share in shares.items()}
        for shares in decoded
    )
    told = f"keep {stage2['means']:g}% of Stage 2's answers and {stage1['means']:g}% of Stage 1's"
    assert f"{told}; zeros keep {stage2['zeros']:g}%, no block {stage2['no block']:g}%" in text
    less = [each["means"] - each["other problem"] for each in (stage2, stage1)]
    assert f"{less[0]:g} and {less[1]:g} points less" in text
