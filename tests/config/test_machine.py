"""Sizes that the machine decides where the user did not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.config import RunConfig, load_config
from agentrl.config.machine import Machine, cpu_threads, gpus_of_server, sized

SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "engine.kind": st.sampled_from(["embedded", "sglang"]),
    "engine.servers": st.integers(1, 4),
    "engine.urls": st.just(["http://elsewhere"]),
    "engine.python": st.just("/opt/sglang/bin/python"),
    "rollout.max_concurrent": st.integers(1, 300),
    "trainer.precision": st.sampled_from(["float32", "mixed"]),
    "trainer.ranks": st.integers(1, 4),
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


def test_a_gpu_with_sglang_serves_by_it_and_is_shared_with_a_trainer_of_mixed_precision() -> None:
    config, said = sized(RunConfig(), Machine(16, 2, sglang=True), training=True)
    engine, trainer = config.engine, config.trainer
    assert (engine.kind, engine.servers) == ("sglang", 2)
    assert engine.flags == {"mem-fraction-static": 0.5}
    assert (trainer.precision, config.rollout.max_concurrent) == ("mixed", 192)
    assert said.startswith("chosen for this machine (16 cores, 2 GPUs): engine.kind = sglang, engine.servers = 2, ")


def test_servers_are_as_many_as_gpus_unless_the_user_says_otherwise() -> None:
    machine = Machine(16, 8, sglang=True)
    few, _ = sized(RunConfig(engine={"servers": 2}), machine, training=True)
    assert (few.engine.servers, few.engine.flags) == (2, {"mem-fraction-static": 0.5})
    flagged, _ = sized(RunConfig(engine={"kind": "sglang", "flags": {"tp_size": 8}}), machine, training=False)
    assert (flagged.engine.servers, flagged.engine.flags) == (1, {"tp_size": 8})


def test_cores_are_shared_by_engine_trainer_and_the_run_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(17))
    assert cpu_threads(RunConfig(), training=True) == 8
    assert cpu_threads(RunConfig(engine={"servers": 2}), training=False) == 8
    elsewhere = {"urls": ["http://elsewhere"]}
    assert cpu_threads(RunConfig(engine=elsewhere, trainer={"ranks": 20}), training=True) == 1
    assert cpu_threads(RunConfig(engine=elsewhere), training=True) == 16


def test_servers_share_the_gpus_that_are_visible_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.config.machine.this_machine", lambda: Machine(16, 4, sglang=True))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert [gpus_of_server(index, 2) for index in range(2)] == ["4,5", "6,7"]
    assert gpus_of_server(0, 8) == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpus_of_server(3, 4) == "3"


def test_a_run_that_is_resumed_has_what_was_chosen_when_it_began() -> None:
    began, _ = sized(RunConfig(), Machine(16, 1, sglang=True), training=True)
    stored = RunConfig.model_validate_json(began.model_dump_json())
    assert sized(stored, Machine(2, 0, sglang=False), training=True) == (stored, "")
