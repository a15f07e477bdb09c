"""Weights are read from shared memory during a pause, wherever they came from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.engine.client.sglang import sglang_engine
from agentrl.engine.client.staging import staged
from agentrl.errors import EngineError
from agentrl.system.locks import SHARED_MEMORY, shared_memory_directory

pytestmark = pytest.mark.anyio


async def test_a_checkpoint_on_disk_is_copied_before_and_removed_after(versions: list[Path]) -> None:
    async with staged(versions[1]) as copy:
        assert SHARED_MEMORY in copy.parents
        assert (copy / "model.safetensors").read_bytes() == (versions[1] / "model.safetensors").read_bytes()
        async with staged(copy) as again:
            assert again == copy
    assert not copy.exists()


async def test_what_is_no_directory_is_left_to_the_server(tmp_path: Path) -> None:
    async with staged(tmp_path / "none") as path:
        assert path == tmp_path / "none"


async def test_servers_read_the_copy_and_a_refused_one_is_removed(
    server_url: str, versions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    @contextmanager
    def noted() -> Iterator[Path]:
        with shared_memory_directory() as directory:
            made.append(directory)
            yield directory

    monkeypatch.setattr("agentrl.engine.client.staging.shared_memory_directory", noted)
    async with sglang_engine([server_url]) as engine:
        await engine.update_weights(versions[1], 1)
        (server,) = engine.fleet.in_service()
        assert (await server.get("/model_info", 5))["model_path"].startswith(str(SHARED_MEMORY))
        with pytest.raises(EngineError, match="could not load"):
            await engine.update_weights(tmp_path, 2)
        await engine.update_weights(versions[0], 0)
    assert len(made) == 3
    assert not any(directory.exists() for directory in made)
