"""Which operators can be, and on which backbones."""

from typing import Any

import pytest

import tiny
from tyler.config.files import ConfigError, load_config
from tyler.model import Tyler
from tyler.modeling.operators import Operator


@pytest.mark.parametrize("num_latents", [True, 0, -1, 4.0, "4", None, float("nan"), 10**11])
def test_a_number_of_latents_that_is_none_is_refused_with_those_that_are(num_latents: Any) -> None:
    with pytest.raises(ValueError, match=r"'state' has num_latents=.*; a whole number from 1 to 4096"):
        Operator("state", num_latents, "step")


@pytest.mark.parametrize("name", [5, None, "", "two words", "a.b", ("state",)])
def test_a_name_that_is_no_identifier_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="is not an identifier"):
        Operator(name, 4, "step")


def test_a_boundary_that_is_no_rule_is_refused_with_the_rules() -> None:
    with pytest.raises(ValueError, match="boundary=3; give the name of a rule"):
        Operator("state", 4, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'state' has boundary 'nosuch'; the rules are answer_start, step, structure"):
        Tyler.start(tiny.build_backbone("qwen3"), [Operator("state", 4, "nosuch")])
    with pytest.raises(ConfigError, match="boundary 'nosuch'; the rules are"):
        load_config("mini", ["operators.0.boundary=nosuch"])


@pytest.mark.parametrize("name", ["keys", "values", "forward", "training", "_modules"])
def test_a_name_that_torch_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"operator name '{name}' is a word that torch's ModuleDict needs"):
        Tyler.start(tiny.build_backbone("qwen3"), [Operator(name, 4, "step")])


def test_latents_that_leave_no_room_in_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="'state' has num_latents=256, and a context of 'tiny-qwen3' has 256"):
        Tyler.start(tiny.build_backbone("qwen3"), [Operator("state", tiny.MAX_POSITIONS, "step")])
