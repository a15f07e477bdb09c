"""Start the servers that a configuration asks for, or attach to those that run already.

A started server is a child that ends with this process. One that dies or hangs is started again at its old address; the engine
then gives it the current weights.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from agentrl.config import EngineConfig
from agentrl.config.machine import gpus_of_server
from agentrl.engine.client import EngineLimits, SGLangEngine, sglang_engine
from agentrl.engine.client.stream import ServerLostError
from agentrl.engine.model_facts import vocabulary_of
from agentrl.errors import ClusterError, ConfigError, EngineError, one_line
from agentrl.system.child_process import STATUS_TIMEOUT_S, Child, how_ended
from agentrl.system.files import scratch_directory
from agentrl.system.host import Host, OpenHost, on_this_machine
from agentrl.system.imports import check_extra
from agentrl.system.tasks import in_thread
from agentrl.system.this_process import raise_file_limit

log = logging.getLogger(__name__)

START_TIMEOUT_S = 1800.0
"""How long a server may load a model; one whose process ends is noticed at once."""


def check_engine(config: EngineConfig) -> None:
    """Check that what servers run on is installed, where they are to be started, and has their flags.

    Raises:
        ConfigError: It is not.
    """
    if config.urls:
        return
    if config.kind != "sglang":
        check_extra("train", '`engine.kind` = "embedded"')
        if other := [name for name in config.flags if name.replace("_", "-") != "max-total-tokens"]:
            raise ConfigError(
                f'`engine.flags.{other[0]}` is no flag of the embedded server; use `engine.kind` = "sglang"'
            )
        return
    python = _python_of(config, sys.executable)
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    try:
        found = subprocess.run([python, "-I", "-c", find], capture_output=True, timeout=60, check=False).returncode == 0  # noqa: S603
        why = "which does not have it"
    except (OSError, subprocess.TimeoutExpired) as error:
        found, why = False, f"which cannot be run ({one_line(error)})"
    if not found:
        raise ConfigError(
            f'`engine.kind` = "sglang" needs SGLang in `engine.python` = {python!r}, {why}; install it there, or, for a CPU, with '
            "scripts/install_sglang_cpu.sh, and give the keys of workflows/sglang_cpu.toml"
        )


def _python_of(config: EngineConfig, own: str) -> str:
    """Return the Python that SGLang servers run in. `own`: the one of agentrl on their machine."""
    return os.path.expanduser(config.python) or own


@dataclass(eq=False)
class LocalServer:
    """A server process, which can be started again: on this machine at its old address, elsewhere where there is room then."""

    index: int
    model_path: str | Path
    config: EngineConfig
    log: Path
    seed: int
    lora_rank: int | None = None
    adapters: int = 1
    threads: int = 1
    open_host: OpenHost = on_this_machine
    _host: Host = field(default_factory=Host)
    _port: int = 0
    _process: AsyncExitStack = field(default_factory=AsyncExitStack)
    _child: Child | None = None

    @property
    def url(self) -> str:
        """The address that it serves at."""
        return f"http://{self._host.address}:{self._port}"

    async def start(self) -> None:
        """Start the process and wait until it serves; one that is left of an earlier start is ended first.

        Raises:
            EngineError: It ended, or did not serve in time; the message names its log. Or there is no machine for it.
        """
        await self.stop()
        config, name = self.config, f"{self.config.kind} engine {self.index}"
        try:
            host = self._host = await self._process.enter_async_context(self.open_host("EngineServer", name))
            model_path = Path(self.model_path) if host.scratch is None else await host.bring(Path(self.model_path))
            if host.scratch is not None or not self._port:
                self._port = await host.free_port()
            environment = None
            if config.kind == "sglang":
                # SGLang leaves sockets and more behind in the temporary directory.
                own = await self._process.enter_async_context(scratch_directory("agentrl-engine-"))
                environment = await in_thread(self._environment, host.scratch or Path(own))
            child = self._child = await self._process.enter_async_context(
                host.child_process(name, self.command(model_path), log=self.log, error=EngineError, env=environment)
            )
            with anyio.move_on_after(START_TIMEOUT_S):
                while not (await child.read_line(START_TIMEOUT_S)).startswith("listening on "):
                    pass
                return
        except ClusterError as error:
            raise EngineError(str(error)) from error
        raise EngineError(f"{self.url} did not start within {START_TIMEOUT_S:g} s; its log is {self.log}")

    async def restart(self) -> None:
        """Start it again, and log how it ended. Raises as `start` does."""
        how = "does not answer"
        with anyio.move_on_after(STATUS_TIMEOUT_S):
            how = how_ended(await self._child.wait()) if self._child else how
        log.warning("the %s engine %d %s; its log is %s", self.config.kind, self.index, how, self.log)
        await self.start()

    async def stop(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, AsyncExitStack()
        await process.aclose()

    @asynccontextmanager
    async def place(self, directory: Path) -> AsyncIterator[Path]:
        """Have a directory on the server's machine, for the length of the context.

        Yields:
            Where it is there.

        Raises:
            ServerLostError: The machine is gone, or does not take it.
        """
        host = self._host
        try:
            there = await host.bring(directory)
        except ClusterError as error:
            raise ServerLostError(f"{self.url} is lost: {error}") from error
        try:
            yield there
        finally:
            with anyio.CancelScope(shield=True), suppress(ClusterError):  # a machine that is gone keeps nothing
                await host.remove(there)

    def command(self, model_path: Path) -> list[str]:
        """Return the command of a server of a model that is on its machine."""
        host, config = self._host, self.config
        flags: dict[str, bool | int | float | str] = {
            "model-path": str(model_path),
            "host": host.address,
            "port": self._port,
            "random-seed": self.seed + self.index,
        }
        if config.kind == "embedded":
            command = [host.python, "-m", "agentrl.engine.embedded"]
            flags |= {"threads": self.threads, "exit-with-stdin": True}
        else:
            command = [_python_of(config, host.python), str(host.package / "engine" / "serve_sglang.py")]
            # Partial replies then cost a server what their new tokens cost, however long they are.
            flags |= {"incremental-streaming-output": True, "weight-version": "0"}
            if self.lora_rank:
                # Room for the adapters of now, and, until their last replies are handed back, for those before.
                flags |= {"enable-lora": True, "max-lora-rank": self.lora_rank, "lora-target-modules": "all"}
                flags |= {"max-loras-per-batch": 2 * self.adapters, "max-loaded-loras": 4 * self.adapters}
        flags |= {name.replace("_", "-"): value for name, value in config.flags.items()}
        for name, value in flags.items():
            if value is not False:
                command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return command

    def _environment(self, scratch: Path) -> dict[str, str]:
        environment = {**os.environ, "TMPDIR": str(scratch)}
        if self.config.flags.get("device") == "cpu":
            # By default every server takes every core, and two of them spin in each other's way: 70 times slower here.
            environment["OMP_NUM_THREADS"] = str(self.threads)
            # What SGLang compiles there takes longer than it saves: the first reply held to a grammar waited 10 s for it.
            environment.setdefault("TORCHDYNAMO_DISABLE", "1")
        # Elsewhere the scheduler gives each server its own.
        if self._host.scratch is None and (gpus := gpus_of_server(self.index, self.config.servers)):
            environment["CUDA_VISIBLE_DEVICES"] = gpus
        return environment


@asynccontextmanager
async def _running(servers: Sequence[LocalServer]) -> AsyncIterator[None]:
    """Run servers for the length of the context, which begins when all of them serve."""
    failures: list[EngineError] = []

    async def start(server: LocalServer) -> None:
        try:
            await server.start()
        except EngineError as error:
            failures.append(error)

    try:
        async with anyio.create_task_group() as group:
            for server in servers:
                group.start_soon(start, server)
        if failures:
            raise failures[0]
        yield
    finally:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for server in servers:
                    group.start_soon(server.stop)


@asynccontextmanager
async def launch_engine(
    model_path: str | Path,
    config: EngineConfig,
    *,
    log: Path,
    seed: int = 0,
    lora_rank: int | None = None,
    adapters: int = 1,
    threads: int = 1,
    reply_timeout_s: float = EngineLimits.request_timeout_s,
    open_host: OpenHost = on_this_machine,
) -> AsyncIterator[SGLangEngine]:
    """Open the engine that `config` describes, for the length of the context.

    With `lora_rank`, started servers take LoRA adapters of up to that rank, so many `adapters` at once. Each computes on so many CPU `threads`,
    on a machine that `open_host` opens. A reply takes `reply_timeout_s` at most. Server 1, 2, ... log beside `log`.
    """
    raise_file_limit()
    logs = [log if index == 0 else log.with_stem(f"{log.stem}-{index}") for index in range(config.servers)]
    servers = [
        LocalServer(index, model_path, config, path, seed, lora_rank, adapters, threads, open_host)
        for index, path in enumerate([] if config.urls else logs)
    ]

    vocabulary = await in_thread(vocabulary_of, Path(model_path))
    async with _running(servers):
        by_url = {server.url: server for server in servers}

        async def restart(url: str) -> str:
            server = by_url[url]
            await server.restart()
            by_url[server.url] = server
            return server.url

        async with sglang_engine(
            config.urls or list(by_url),
            pause_mode=config.pause_mode,
            limits=EngineLimits(request_timeout_s=reply_timeout_s),
            restart=restart if servers else None,
            transfer=(lambda url, directory: by_url[url].place(directory)) if servers else None,
            vocabulary=vocabulary,
        ) as engine:
            yield engine
