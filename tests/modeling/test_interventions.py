"""Interventions on heads: what is removed, silenced, swapped or shared, and nothing else."""

from collections.abc import Callable

import pytest
import torch
from tests import reference, tiny
from tests.asking import differences

from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries, Forced, Learned
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.interventions import fix, remove, share, swap, zero
from tyler.modeling.synthesis import Heads

FORCED = Forced({0: ("global",), 2: ("state",), 3: ("procedure", "state")})
LENGTHS = {"global": 5, "state": 3, "procedure": 2}


def request(seed: int = 0, router: Learned | AtBoundaries | Forced = FORCED) -> Request:
    return Request(tiny.ids(tiny.MEDIUM), router=router, sampling=Sampling(1.0, seed=seed), max_new_tokens=20)


def under(model: Tyler, heads: Heads, seed: int = 0) -> Trajectory:
    return model.with_heads(heads).engine(slots=1).run([request(seed)])[0]


def blocks(trajectory: Trajectory) -> list[tuple[str, torch.Tensor]]:
    return list(zip([call.operator for call in trajectory.invocations], trajectory.latents, strict=True))


INTERVENTIONS: dict[str, Callable[[Heads], Heads]] = {
    "remove": lambda heads: remove(heads, "state"),
    "zero": lambda heads: zero(heads, "state"),
    "swap": lambda heads: swap(heads, "state", "global"),
    "share": lambda heads: share(heads, "procedure"),
}


@pytest.mark.parametrize("name", INTERVENTIONS)
@pytest.mark.parametrize("router", [FORCED, AtBoundaries(), Learned()], ids=["forced", "boundaries", "learned"])
def test_an_intervention_is_what_the_transcription_makes_of_it(
    name: str, router: Learned | AtBoundaries | Forced
) -> None:
    model = tiny.tyler("qwen2")
    changed = model.with_heads(INTERVENTIONS[name](model.heads))
    requests = [request(seed, router) for seed in range(2)]
    for each, trajectory in zip(requests, changed.engine(slots=2).run(requests), strict=True):
        assert not differences(trajectory, reference.decode(changed, each))


def test_fix_gives_one_operator_the_same_latents_in_every_context() -> None:
    model = tiny.tyler("qwen3")
    latents = torch.linspace(-1, 1, 4 * model.backbone.dim).view(4, -1)
    trajectory = under(model, fix(model.heads, "state", latents))
    states = [block for name, block in blocks(trajectory) if name == "state"]
    assert len(states) == 2 and all(torch.equal(block, latents) for block in states)
    plain = dict(blocks(under(model, model.heads)))
    assert torch.equal(dict(blocks(trajectory))["global"], plain["global"])


def test_interventions_are_other_mappings_of_the_same_heads() -> None:
    heads = tiny.tyler("qwen2").heads
    assert remove(heads, "state") == {name: heads[name] for name in ("global", "procedure")}
    assert swap(heads, "state", "global") == {**heads, "state": heads["global"], "global": heads["state"]}
    assert share(heads, "procedure") == dict.fromkeys(LENGTHS, heads["procedure"])
    silenced = zero(heads, "state")
    hidden = torch.ones(silenced["state"].num_latents, 32)
    assert len(hidden) == LENGTHS["state"] and not silenced["state"](hidden).any()
    assert {**silenced, "state": heads["state"]} == heads


def test_a_removed_operator_has_probability_zero_and_the_others_gain() -> None:
    model = tiny.tyler("qwen2")
    without = model.with_heads(remove(model.heads, "state"))
    full = model.engine(slots=1).run([request(5, Learned())])[0]
    cut = without.engine(slots=1).run([request(5, Learned())])[0]
    assert cut.offered == (True, False, True)
    assert not cut.allowed()[:, 1].any()
    assert full.actions[0] != cut.actions[0] or cut.logprobs[0] > full.logprobs[0]
    assert under(model, remove(model.heads, "state")).num_invocations == 2


def test_without_any_head_the_policy_decodes_tokens_only() -> None:
    model = tiny.tyler("qwen2")
    trajectories = model.with_heads({}).engine(slots=3).run([request(seed, Learned()) for seed in range(3)])
    assert all(answer.num_invocations == 0 for answer in trajectories)


def test_interventions_leave_the_model_as_it_was() -> None:
    model = tiny.tyler("qwen2")
    before = {name: head.state_dict() for name, head in model.heads.items()}
    kept = {name: {key: value.clone() for key, value in state.items()} for name, state in before.items()}
    for intervene in INTERVENTIONS.values():
        intervene(model.heads)
    assert set(model.heads) == set(LENGTHS)
    assert all(model.heads[name].state_dict()[key].equal(kept[name][key]) for name in kept for key in kept[name])


@pytest.mark.parametrize(
    "intervene",
    [lambda heads: remove(heads, "plan"), lambda heads: zero(heads, "plan"), lambda heads: share(heads, "plan"),
     lambda heads: fix(heads, "plan", torch.zeros(1, 32)),
     lambda heads: swap(heads, "plan", "state"), lambda heads: swap(heads, "state", "plan")],
)  # fmt: skip
def test_unknown_operators_are_refused_by_name(intervene: Callable[[Heads], Heads]) -> None:
    with pytest.raises(ValueError, match=r"no operator 'plan' here; there are global, state, procedure"):
        intervene(tiny.tyler("qwen2").heads)
