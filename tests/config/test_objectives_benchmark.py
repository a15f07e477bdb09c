"""The settings of `benchmarks/objectives.py` are such as the command line takes."""

from __future__ import annotations

import pytest

from agentrl.config import load_config
from benchmarks.objectives import OBJECTIVES, ROOT, options_of


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_settings_of_each_objective_are_keys_with_values_that_can_be_typed(name: str) -> None:
    settings = {f"trainer.{key}": value for key, value in OBJECTIVES[name].items()}
    typed = dict(option.removeprefix("--").split("=", 1) for option in options_of(settings))
    config = load_config(ROOT / "workflows" / "quickstart.toml", typed)
    assert config.trainer != load_config(ROOT / "workflows" / "quickstart.toml").trainer
    for key, value in settings.items():
        held: object = config
        for part in key.split("."):
            held = getattr(held, part)
        assert value in (held, getattr(held, "kind", None)), key
