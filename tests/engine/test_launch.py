"""Servers as agentrl starts them: they end with us, are started again when they die, and replies survive it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from agentrl.config import EngineConfig, RunConfig, load_config
from agentrl.engine.client.fleet import EngineLimits
from agentrl.engine.launch import check_engine, launch_engine
from agentrl.engine.protocol import Sampling
from agentrl.errors import ConfigError, EngineError, error_line
from agentrl.models import NANO
from agentrl.record.tokens import Generation
from agentrl.record.trajectory import TokenRecord
from agentrl.rollout.open_runner import open_engine
from tests.components import wait_until
from tests.real_sglang import sglang_config
from tests.rescoring import Rescorer

pytestmark = pytest.mark.anyio
LONG = 600


async def config_of(kind: str, **changes: Any) -> EngineConfig:
    if kind == "sglang":
        return await anyio.to_thread.run_sync(lambda: sglang_config(**changes))
    return EngineConfig(**changes)


def server_pids(url: str) -> list[int]:
    """Processes whose command names the port of `url`, the one that was started first."""
    port = url.rpartition(":")[2]
    found = subprocess.run(["pgrep", "-f", "--", f"--port[= ]{port}"], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["embedded", pytest.param("sglang", marks=[pytest.mark.soak, pytest.mark.timeout(240)])]
)
async def test_a_server_ends_with_its_context_also_in_the_middle_of_a_reply(kind: str, tmp_path: Path) -> None:
    ended: list[BaseException | None] = []

    async def ask(url: str) -> None:
        body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}}
        try:
            async with aiohttp.ClientSession() as http, http.post(f"{url}/generate", json=body) as response:
                await response.read()
            ended.append(None)
        except aiohttp.ClientError as error:
            ended.append(error)

    async with anyio.create_task_group() as group:
        config = await config_of(kind, servers=1)
        async with launch_engine(NANO, config, log=tmp_path / "engine.log") as engine:
            (url,) = engine.serving
            assert await anyio.to_thread.run_sync(server_pids, url)
            group.start_soon(ask, url)
            await anyio.sleep(0.3)
    assert len(ended) == 1
    assert not await anyio.to_thread.run_sync(server_pids, url)


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["embedded", "sglang"])
async def test_replies_survive_the_death_of_their_server(
    kind: str, versions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 in the middle of long replies: they end elsewhere, exactly; the server returns with the current weights."""
    monkeypatch.setattr("agentrl.engine.launch.EngineLimits", partial(EngineLimits, health_interval_s=0.3))
    config = await config_of(kind, servers=2)
    async with launch_engine(NANO, config, log=tmp_path / "engine.log") as engine:
        await engine.update_weights(versions[1], 1)
        results: list[tuple[list[int], Generation]] = []
        begun: set[int] = set()

        async def one(start: int) -> None:
            prompt, sampling = [1, 2, 3, start], Sampling(max_new_tokens=LONG)
            results.append((prompt, await engine.generate(prompt, sampling, f"s{start}", lambda _: begun.add(start))))

        first, second = engine.serving
        async with anyio.create_task_group() as group:
            for start in range(10, 18):
                group.start_soon(one, start)
            await wait_until(lambda: len(begun) == 8, 60)
            for pid in await anyio.to_thread.run_sync(server_pids, first):
                os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: engine.serving == [second], 40)
            await engine.update_weights(versions[2], 2)
        assert engine.fleet.failures == 1
        assert len(results) == 8

        await wait_until(lambda: len(engine.serving) == 2, 150)
        later = await ask_directly(first)
        assert later["meta_info"]["weight_version"] == "2"

    record = TokenRecord()
    for prompt, generation in results:
        assert generation.finish == ("length" if len(generation.output_ids) == LONG else "stop")
        record.add("id", None, prompt, generation, 1.0)
    assert any(len(generation.versions) > 1 for _, generation in results)
    assert Rescorer(versions).largest_difference(record) < 1e-4


async def ask_directly(url: str) -> Any:
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/generate", json=body) as response:
        return await response.json()


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_a_server_that_hangs_is_taken_for_dead_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "agentrl.engine.launch.EngineLimits", partial(EngineLimits, health_interval_s=0.2, hang_timeout_s=1)
    )
    async with launch_engine(NANO, EngineConfig(servers=2), log=tmp_path / "engine.log") as engine:
        results: list[Generation] = []

        async def one(start: int) -> None:
            results.append(await engine.generate([1, start], Sampling(max_new_tokens=LONG), f"s{start}"))

        hung = engine.serving[0]
        (pid,) = await anyio.to_thread.run_sync(server_pids, hung)
        async with anyio.create_task_group() as group:
            for start in range(10, 14):
                group.start_soon(one, start)
            await anyio.sleep(0.3)
            os.kill(pid, signal.SIGSTOP)
            await wait_until(lambda: len(results) == 4, 60)
        await wait_until(lambda: hung in engine.serving, 60)
        assert await anyio.to_thread.run_sync(server_pids, hung) != [pid]


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_a_run_goes_on_when_its_only_server_dies_and_its_end_is_said_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agentrl.engine.launch.EngineLimits", partial(EngineLimits, health_interval_s=0.2))
    async with launch_engine(NANO, EngineConfig(), log=tmp_path / "engine.log") as engine:
        results: list[Generation] = []

        async def one() -> None:
            results.append(await engine.generate([1, 2], Sampling(max_new_tokens=LONG), "s"))

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            await anyio.sleep(0.3)
            (url,) = engine.serving
            for pid in await anyio.to_thread.run_sync(server_pids, url):
                os.kill(pid, signal.SIGKILL)
        assert results[0].finish in ("stop", "length")
    (lost,) = (message for message in caplog.messages if "taken out of service" in message)
    assert lost.count(url) == 1
    assert f"the embedded engine 0 was killed by SIGKILL; its log is {tmp_path / 'engine.log'}" in caplog.messages


async def test_a_server_that_cannot_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.log"):
        async with launch_engine(tmp_path, EngineConfig(), log=tmp_path / "engine.log"):
            pass
    with pytest.raises(EngineError, match="cannot be started: /no/python"):
        async with launch_engine(NANO, EngineConfig(kind="sglang", python="/no/python"), log=tmp_path / "engine.log"):
            pass


def test_flags_that_cannot_apply_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"`engine\.flags\.tp-size` is no flag of the embedded server"):
        check_engine(EngineConfig(flags={"tp-size": 2, "max_total_tokens": 1000}))
    with pytest.raises(ConfigError, match=r"flags\.port is set by agentrl"):
        load_config(overrides={"engine.flags.port": "2", "engine.kind": "sglang"})


@pytest.mark.soak
async def test_the_log_that_a_failed_engine_names_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    empty = tmp_path / "no-model"
    empty.mkdir()
    with pytest.raises(EngineError, match="its log is ") as failed:
        async with open_engine(RunConfig(model=str(empty))):
            raise AssertionError("it serves no model")
    named = re.search(r"its log is (\S+)", str(failed.value))
    assert named is not None
    log = Path(named[1])
    assert error_line(log.read_text())[:60] in str(failed.value)
    assert log.parent.stat().st_mode & 0o077 == 0
