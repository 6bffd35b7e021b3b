"""The table of trainings, against the functions and the settings that it names."""

from __future__ import annotations

from operator import attrgetter

import pytest

from tyler.config.schema import Config
from tyler.reasoners.table import TRAININGS, every_metrics


def test_these_are_the_trainings() -> None:
    assert set(TRAININGS) == {"sft", "grpo", "softcot", "memgen", "memgen-weaver-grpo", "memgen-trigger"}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_trainer_names_a_training_and_settings_that_there_are(name: str) -> None:
    trainer, config = TRAININGS[name], Config()
    assert callable(trainer.load())
    assert trainer.loop in config.loops and trainer.loop.partition(".")[0] in trainer.reads
    for setting in trainer.reads:
        attrgetter(setting)(config)  # there is one of this name


def test_metrics_name_settings_that_there_are() -> None:
    for metrics in every_metrics().values():
        assert metrics.sections and set(metrics.sections) <= set(Config.model_fields)
