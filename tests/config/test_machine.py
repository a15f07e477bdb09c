"""Sizes that the machine decides where the user did not."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import RunConfig, load_config
from agentrl.config.machine import Machine, sized

SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "engine.kind": st.sampled_from(["embedded", "sglang"]),
    "engine.servers": st.integers(1, 4),
    "engine.urls": st.just(["http://elsewhere"]),
    "engine.python": st.just("/opt/sglang/bin/python"),
    "engine.threads": st.integers(1, 8),
    "rollout.max_concurrent": st.integers(1, 300),
    "trainer.device": st.sampled_from(["auto", "cpu", "cuda"]),
    "trainer.precision": st.sampled_from(["float32", "mixed"]),
    "trainer.ranks": st.integers(1, 4),
    "trainer.threads": st.integers(1, 8),
}
MACHINES = st.builds(Machine, st.integers(1, 128), st.integers(0, 8), st.booleans())


def held(config: RunConfig, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


@given(st.fixed_dictionaries({}, optional=SETTINGS), MACHINES, st.booleans())
def test_what_the_user_set_is_kept_and_the_rest_is_chosen_once(
    settings: dict[str, Any], machine: Machine, training: bool
) -> None:
    config, _ = sized(load_config((), settings), machine, training=training)
    assert {key: held(config, key) for key in settings} == settings
    assert RunConfig.model_validate(config.model_dump()) == config
    assert config.engine.threads >= 1 <= config.trainer.threads


def test_a_gpu_with_sglang_serves_by_it_and_is_shared_with_a_trainer_of_mixed_precision() -> None:
    config, said = sized(RunConfig(), Machine(16, 2, sglang=True), training=True)
    engine, trainer = config.engine, config.trainer
    assert (engine.kind, engine.servers, engine.gpus_per_server) == ("sglang", 2, 1)
    assert engine.flags == {"mem-fraction-static": 0.5}
    assert (trainer.device, trainer.precision, config.rollout.max_concurrent) == ("cuda", "mixed", 192)
    assert said.startswith("chosen for this machine (16 cores, 2 GPUs): engine.kind = sglang, engine.servers = 2, ")


def test_gpus_are_shared_by_servers_beside_what_the_user_set() -> None:
    machine = Machine(16, 8, sglang=True)
    few, _ = sized(RunConfig(engine={"servers": 2}), machine, training=True)
    assert (few.engine.gpus_per_server, few.engine.flags) == (4, {"mem-fraction-static": 0.5})
    flagged, _ = sized(RunConfig(engine={"kind": "sglang", "flags": {"tp_size": 8}}), machine, training=False)
    assert (flagged.engine.servers, flagged.engine.gpus_per_server, flagged.engine.flags) == (1, 0, {"tp_size": 8})


def test_cores_are_shared_by_engine_trainer_and_the_run_itself() -> None:
    config, _ = sized(RunConfig(), Machine(17, 0, sglang=True), training=True)
    assert (config.engine.kind, config.engine.threads, config.trainer.threads) == ("embedded", 8, 8)
    alone, _ = sized(RunConfig(engine={"servers": 2}), Machine(17, 0, sglang=False), training=False)
    assert alone.engine.threads == 8


def test_a_run_that_is_resumed_has_what_was_chosen_when_it_began() -> None:
    began, _ = sized(RunConfig(), Machine(16, 1, sglang=True), training=True)
    stored = RunConfig.model_validate_json(began.model_dump_json())
    assert sized(stored, Machine(2, 0, sglang=False), training=True) == (stored, "")
