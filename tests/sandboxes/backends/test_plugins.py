"""Backends of other packages: the example of docs/sandbox_plugins.md, installed, on a service over loopback that runs real programs."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web

from agentrl.concurrency.child_process import kill_process, start_process
from agentrl.concurrency.threads import in_thread
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, SandboxLostError
from agentrl.rollout.episode_parts import load_backend, open_run_sandboxes
from agentrl.sandboxes import Limits, Sandbox, open_sandbox
from agentrl.sandboxes.plugins import plugin_names
from agentrl.testing import check_backend

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[3] / "docs/sandbox_plugins.md"
HOLES = ("network = false", "read-only root", "no privileges", "processes = 16", "files")


def install(
    folder: Path, code: str, entry: str = "hosted = agentrl_hosted:Hosted", package: str = "agentrl_hosted"
) -> None:
    """Put a package where Python finds it, as an installer does."""
    (folder / f"{package}.py").write_text(code)
    facts = folder / f"{package}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[agentrl.sandboxes]\n{entry}\n")


class Service:
    """Starts programs, which are real, and carries their streams as text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.alive: dict[str, list[object]] = {}
        self.made = 0

    async def create(self, request: web.Request) -> web.Response:
        self.made += 1
        name = f"s{self.made}"
        (self.folder / name).mkdir()
        self.alive[name] = []
        return web.json_response({"id": name, "folder": str(self.folder / name)})

    async def run(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        command = await socket.receive_json()
        process = await start_process([sys.executable, *command[1:]], stderr=subprocess.DEVNULL)
        self.alive[request.match_info["name"]].append(process)
        assert process.stdin is not None
        assert process.stdout is not None

        async def carry() -> None:
            try:
                async for data in process.stdout:  # type: ignore[union-attr]
                    await socket.send_str(data.decode())
            except Exception:
                pass
            await socket.close()

        out = asyncio.ensure_future(carry())
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await process.stdin.send(message.data.encode())
        kill_process(process)
        await out
        await process.wait()
        await process.aclose()
        return socket

    async def delete(self, request: web.Request) -> web.Response:
        for process in self.alive.pop(request.match_info["name"]):
            kill_process(process)  # type: ignore[arg-type]
        return web.json_response({})

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/health", _answered)
        app.router.add_post("/sandboxes", self.create)
        app.router.add_get("/sandboxes/{name}/run", self.run)
        app.router.add_delete("/sandboxes/{name}", self.delete)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


async def _answered(request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    (example,) = re.findall(r"```python\n(import os\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(example.splitlines()) < 70
    site, folder = tmp_path / "site", tmp_path / "service"
    site.mkdir()
    folder.mkdir()
    install(site, example)
    monkeypatch.syspath_prepend(site)
    service = Service(folder)
    async with service.serve() as url:
        monkeypatch.setenv("HOSTED_URL", url)
        yield service
    sys.modules.pop("agentrl_hosted", None)


@pytest.mark.soak
async def test_the_example_keeps_the_contract(service: Service) -> None:
    async def alive() -> int:
        return len(service.alive)

    async def loses(sandbox: Sandbox) -> None:
        for processes in service.alive.values():
            for process in processes:
                kill_process(process)  # type: ignore[arg-type]

    assert "hosted" in await in_thread(plugin_names)
    await check_backend("hosted", told_holes=HOLES, alive=alive, loses=loses, many=2)
    assert service.made > 8


async def test_a_run_takes_a_package_s_backend_and_one_of_a_file(service: Service, tmp_path: Path) -> None:
    for name in ("hosted", f"python:{tmp_path / 'site' / 'agentrl_hosted.py'}:Hosted"):
        config = RunConfig.model_validate({"sandbox": {"backend": name}})
        async with open_run_sandboxes(config) as sandboxes:
            lease = await sandboxes.acquire(image=None, limits=None, cpus=1.0, network=False, folders={})
            assert (await lease.sandbox.run(["sh", "-c", "echo $((6 * 7))"])).stdout == b"42\n"
            lease.release()


@pytest.mark.filterwarnings("ignore:`sandbox.backend` = UNSAFE_no_isolation")
async def test_all_sandboxes_of_a_run_come_from_one_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
from agentrl.sandboxes.backends.no_isolation import NoIsolation
made = []
class Counted(NoIsolation):
    def __init__(self):
        made.append(self)
"""
    install(tmp_path, code, entry="counted = agentrl_counted:Counted", package="agentrl_counted")
    monkeypatch.syspath_prepend(tmp_path)
    config = RunConfig.model_validate({"sandbox": {"backend": "counted"}})
    async with open_run_sandboxes(config) as sandboxes:
        for limits in (None, Limits(memory_mb=64)):  # of which each has a pool of its own
            lease = await sandboxes.acquire(image=None, limits=limits, cpus=1.0, network=False, folders={})
            lease.release()
    assert len(sys.modules.pop("agentrl_counted").made) == 1


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nosuch", r"cannot be imported: ModuleNotFoundError: No module named 'nosuch'"),
        ("Hosted = 3", "is int; name a class or function"),
        ("class Hosted:\n def __init__(self): raise KeyError('HOSTED_URL')", "cannot be made: KeyError: 'HOSTED_URL'"),
        (
            "class Hosted:\n name = 'x'\n def prepare(self, spec): pass",
            r"lacks isolates .*async def prepare\(spec\), start\(spec, core\)",
        ),
    ],
)
async def test_a_package_that_is_none_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    install(tmp_path, code, entry="broken = agentrl_broken:Hosted", package="agentrl_broken")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=says):
        await load_backend("broken")
    sys.modules.pop("agentrl_broken", None)
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(
        ConfigError, match=says.replace("imported", "(imported|loaded)").replace("ModuleNotFoundError: ", ".*")
    ):
        await load_backend(f"python:{tmp_path / 'own.py'}:Hosted")


async def test_a_name_that_nobody_has_is_refused_with_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "", entry="mine = agentrl_mine:Mine", package="agentrl_mine")
    install(tmp_path, "", entry="mine = agentrl_other:Mine", package="agentrl_other")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"backend = 'dokcer'; use one of auto, docker, .*mine"):
        await load_backend("dokcer")
    with pytest.raises(ConfigError, match="of the packages agentrl_mine and agentrl_other; uninstall all but one"):
        await load_backend("mine")
    with pytest.raises(ConfigError, match="names no object; write python:FILE_OR_MODULE:FACTORY"):
        await load_backend("python:Hosted")


async def test_a_service_that_ends_a_program_loses_the_sandbox(service: Service) -> None:
    async with open_sandbox(backend="hosted") as sandbox:
        for process in service.alive["s1"]:
            kill_process(process)  # type: ignore[arg-type]
        with pytest.raises(SandboxLostError, match="its program ended"):
            await sandbox.run(["sleep", "100"], timeout_s=100)
    assert service.alive == {}
