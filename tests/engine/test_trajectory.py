"""Trajectories: what they count and allow, and that they are told as text and come back."""

import json
from dataclasses import replace
from random import Random

import pytest
import torch

from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Invocation, Trajectory

VOCAB, DIM = 11, 4
NAMES, LENGTHS = ("global", "state"), (3, 2)


def trajectory_of(
    prompt: list[int], actions: list[int], *, budget: int | None = None, offered: tuple[bool, bool] = (True, True)
) -> Trajectory:
    """A trajectory with these actions; ids from VOCAB on are operators."""
    is_operator = [action >= VOCAB for action in actions]
    calls = [(index, action - VOCAB) for index, action in enumerate(actions) if action >= VOCAB]
    return Trajectory(
        prompt_ids=prompt,
        actions=actions,
        logprobs=[-0.1 * (index + 1) for index in range(len(actions))],
        is_operator=is_operator,
        invocations=tuple(
            Invocation(NAMES[k], index - sum(is_operator[:index]), LENGTHS[k], index) for index, k in calls
        ),
        latents=[torch.full((LENGTHS[k], DIM), float(index)) for index, k in calls],
        text="",
        finish_reason="length",
        vocab_size=VOCAB,
        offered=offered,
        budget=budget,
        sampling=Sampling(1.0),
    )


def random_trajectories() -> list[Trajectory]:
    random = Random(3)
    return [
        trajectory_of(
            [random.randrange(VOCAB) for _ in range(random.randrange(1, 6))],
            [random.randrange(VOCAB + 2) for _ in range(random.randrange(1, 9))],
            budget=random.choice([None, 0, 1, 2, 5]),
            offered=random.choice([(True, True), (True, False), (False, False)]),
        )
        for _ in range(40)
    ]


def test_operators_are_allowed_until_the_budget_is_spent() -> None:
    for trajectory in random_trajectories():
        spent = 0
        for action, allowed in zip(trajectory.actions, trajectory.allowed(), strict=True):
            within = trajectory.budget is None or spent < trajectory.budget
            assert allowed.tolist() == [within and offered for offered in trajectory.offered]
            spent += action >= VOCAB


def test_operators_of_a_fixed_router_were_not_drawn() -> None:
    for trajectory in random_trajectories():
        for action, drawn in zip(trajectory.actions, trajectory.drawn(), strict=True):
            assert drawn == (action < VOCAB or trajectory.offered[action - VOCAB])


def test_counts_are_those_of_the_invocations() -> None:
    trajectory = trajectory_of([1], [3, VOCAB, 4, VOCAB + 1, VOCAB + 1, 5])
    assert (trajectory.num_invocations, trajectory.num_visible, trajectory.num_latents) == (3, 3, 7)
    assert [call.position for call in trajectory.invocations] == [1, 2, 2]


def test_a_trajectory_is_shown_in_a_line_whatever_it_holds() -> None:
    trajectory = trajectory_of([1, 2], [3, VOCAB, 4])
    trajectory.text, trajectory.limited_by = "x" * 500, "context"
    shown = repr(trajectory)
    assert shown.startswith("Trajectory('xxx") and "…" in shown
    assert "2 visible tokens, 3 latents in 1 invocation; finished by length (context)" in shown
    assert len(shown) < 160


def test_a_trajectory_equals_one_in_which_the_same_happened() -> None:
    first, other = trajectory_of([1, 2], [3, VOCAB, 4]), trajectory_of([1, 2], [3, VOCAB, 4])
    other.seconds = 9.0
    assert first == other, "times do not count"
    assert first != trajectory_of([1, 2], [3, VOCAB, 5])
    other.latents = [other.latents[0] + 1e-3]
    assert first != other
    assert first != trajectory_of([1, 2], [3, 4]) and first != "a text"


def test_what_is_told_as_json_comes_back_to_the_last_bit() -> None:
    for trajectory in random_trajectories():
        trajectory.text, trajectory.latents = 'a "text"\u2028', [block / 3 for block in trajectory.latents]
        trajectory.operator_probs = [(0.1, 0.2 / 3)] * len(trajectory.actions)
        line = trajectory.to_json(latents=True)
        assert Trajectory.from_json(line) == trajectory
        assert "\n" not in line
        assert Trajectory.from_dict(trajectory.to_dict()).latents == []


def test_latents_come_back_in_their_dtype() -> None:
    trajectory = trajectory_of([1], [VOCAB])
    trajectory.latents = [block.bfloat16() / 3 for block in trajectory.latents]
    assert Trajectory.from_dict(trajectory.to_dict(latents=True)) == trajectory


def test_json_tells_the_counts_and_leaves_the_latents_out_unless_they_are_wanted() -> None:
    fields = json.loads(trajectory_of([1, 2], [3, VOCAB, 4]).to_json())
    assert (fields["num_visible"], fields["num_latents"], fields["num_invocations"], fields["latents"]) == (
        2,
        3,
        1,
        None,
    )
    assert fields["invocations"] == [{"operator": "global", "position": 1, "num_latents": 3, "action": 1, "offset": 0}]


def test_a_dictionary_of_other_keys_is_refused_by_their_names() -> None:
    fields = trajectory_of([1], [2]).to_dict()
    del fields["actions"]
    with pytest.raises(ValueError, match=r"keys that differ: \['actions', 'colour'\]"):
        Trajectory.from_dict({**fields, "colour": "red"})


def test_a_notebook_and_a_terminal_show_operators_in_place() -> None:
    trajectory = trajectory_of([1], [3, VOCAB, 4])
    trajectory.text = "<i>so"
    trajectory.invocations = (replace(trajectory.invocations[0], offset=3),)
    assert trajectory.__rich__().plain == "<i>⟨global ×3⟩so"
    page = trajectory._repr_html_()
    assert '&lt;i&gt;<span class="op" style="background:#007abf">global ×3</span>so' in page
    assert "<small>2 visible tokens, 3 latents in 1 invocation; finished by length</small>" in page
