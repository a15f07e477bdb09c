"""Checkpoints at a URL, in a real object store: whole there before they count, fetched when they are damaged here, deleted with the others."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.engine.launch import free_port
from agentrl.errors import CheckpointError, CheckpointUrlError, TrainerError
from agentrl.rollout.manifest import MANIFEST
from agentrl.rollout.store import Store
from agentrl.run.checkpoint_url import CheckpointUrl
from agentrl.run.run_directory import checkpoint_directory
from agentrl.run.trainer_supervisor import TrainerSupervisor
from tests.components import missing
from tests.recorded_run import batch, record_run, running
from tests.whole_audit import audit

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
MOTO = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl" / "moto" / "bin" / "moto_server"
BUCKET = "checkpoints"


class Proxy(BaseHTTPRequestHandler):
    """What stands between a client and the object store, and answers in its place while `fault` says so."""

    store = ""
    fault: str | None = None
    """A method and a part of a path: a request that has both is answered with 503. With "*", nothing else helps."""
    faults = 0

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = type(self).fault
        if fault is not None and self.command == fault.split()[0] and fault.split()[1] in self.path:
            type(self).faults += 1
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>", {})
            return
        request = urllib.request.Request(
            self.store + self.path, data=body or None, headers=dict(self.headers), method=self.command
        )
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                self._answer(answer.status, answer.read(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            self._answer(error.code, error.read(), dict(error.headers))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        kept = {k: v for k, v in headers.items() if k.lower() not in ("content-length", "connection", "server", "date")}
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        for name, value in {**kept, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of S3's protocol, with a bucket: its address."""
    if not MOTO.is_file():
        missing("moto is not installed: scripts/install_clients.sh")
    address = f"http://127.0.0.1:{free_port()}"
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as file:
        server = subprocess.Popen([MOTO, "-H", "127.0.0.1", "-p", address.rpartition(":")[2]], stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{address}/moto-api/", timeout=10):
                    break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT"), timeout=10).close()
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def through(object_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Proxy]]:
    """What stands before the object store, which clients are told to be the store."""
    kind = type("OwnProxy", (Proxy,), {"store": object_store})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    yield kind
    server.shutdown()
    server.server_close()
    thread.join()


@asynccontextmanager
async def run_at_url(
    run_dir: Path, said: list[str], keep: int = 1
) -> AsyncIterator[tuple[TrainerSupervisor, CheckpointUrl]]:
    """The trainer of a start of the run, with its checkpoints at a URL too, which it is given to look into."""
    url = await in_thread(url_of, run_dir)
    async with running(run_dir, said.append, keep, url) as trainer:
        yield trainer, url


def url_of(run_dir: Path) -> CheckpointUrl:
    return CheckpointUrl(f"s3://{BUCKET}/of-tests", run_dir.parent.name)


def record(run_dir: Path) -> None:
    """A run that is not there yet under its name in the object store."""
    record_run(run_dir, steps=4)


async def checkpoint(trainer: TrainerSupervisor, *steps: int) -> None:
    for step in steps:
        await trainer.step(batch(step))
    await trainer.checkpoint()
    await trainer.commit()


async def test_what_is_kept_is_at_the_url_and_comes_back_from_it(tmp_path: Path, through: type[Proxy]) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(record, run_dir)
    async with run_at_url(run_dir, said) as (trainer, url):
        await checkpoint(trainer, 1, 2)
        assert await in_thread(url.names) == ["step-000002"]
        await checkpoint(trainer, 3)
        assert await in_thread(url.names) == ["step-000003"], "the other is not kept any more"
    here = checkpoint_directory(run_dir, 3)
    assert await in_thread(lambda: list(url.wrong(here))) == []
    whole = await in_thread(lambda: (here / "model.safetensors").read_bytes())
    await in_thread((here / "model.safetensors").unlink)
    async with run_at_url(run_dir, said) as (trainer, url):
        assert trainer.weights.version == 3
        assert await in_thread(lambda: (here / "model.safetensors").read_bytes()) == whole
        assert "it was fetched from s3://" in said[-1]
        await in_thread(url._files.pipe_file, f"{url._root}/step-000003/model.safetensors", whole[:-1] + b"?")
    assert ["another model.safetensors" in text for text in await in_thread(lambda: list(url.wrong(here)))] == [True]
    # Damaged in both places: its batches are trained again.
    await in_thread((here / "model.safetensors").unlink)
    async with run_at_url(run_dir, said) as (trainer, url):
        assert trainer.weights.version == 3
        assert any("cannot be had from its URL" in text for text in said)
    assert (await in_thread(audit, run_dir)).violations == []
    assert await in_thread(lambda: list(url.wrong(here))) == []


async def test_a_checkpoint_that_is_not_whole_at_the_url_does_not_count(
    tmp_path: Path, through: type[Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.run.trainer_supervisor.URL_WAITS_S", (0.01,))
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(record, run_dir)
    async with run_at_url(run_dir, said) as (trainer, url):
        await checkpoint(trainer, 1)
        through.fault = f"PUT {MANIFEST}"
        with pytest.raises(TrainerError, match="step-000002 cannot be written to s3://.*What was committed is safe"):
            await checkpoint(trainer, 2)
        assert through.faults
        assert "it is tried again in 0.01 s" in said[0]
        assert await in_thread(url.names) == ["step-000001", "step-000002"], "all of it but its manifest"
        with pytest.raises(CheckpointError, match="is not there"):
            await in_thread(url.get, tmp_path / "fetched" / "step-000002")
    with await in_thread(Store, run_dir / "store.sqlite") as store:
        assert (await in_thread(store.last_checkpoint))[0] == 1  # type: ignore[index]
    through.fault = None
    async with run_at_url(run_dir, said) as (trainer, url):
        assert await in_thread(url.names) == ["step-000001"], "what is left of the other is deleted"
        await checkpoint(trainer, 2)
        assert await in_thread(url.names) == ["step-000002"]
    assert (await in_thread(audit, run_dir)).violations == []


async def test_a_store_that_cannot_delete_costs_room_until_the_next_start(tmp_path: Path, through: type[Proxy]) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(record, run_dir)
    async with run_at_url(run_dir, said) as (trainer, url):
        await checkpoint(trainer, 1)
        through.fault = "POST ?delete"
        with pytest.raises(CheckpointUrlError):
            await in_thread(url.remove, "step-000001")
