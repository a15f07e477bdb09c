"""Checkpoints at a URL, in a real object store: whole there before they count, fetched when they are damaged here, deleted with the others."""

from __future__ import annotations

import http.client
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.config import RunConfig
from agentrl.errors import CheckpointError, ConfigError, TrainerError
from agentrl.run.audit import audit
from agentrl.run.checkpoint_url import CheckpointUrl, checkpoint_url
from agentrl.run.run_directory import checkpoint_directory, whole_checkpoints
from agentrl.run.trainer_supervisor import TrainerSupervisor
from agentrl.store.batches import TrainedStep
from agentrl.store.manifest import MANIFEST, check_files
from agentrl.store.store import Store
from agentrl.system.host import free_port
from tests.components import missing
from tests.recorded_run import TrainerOfRun, batch, record_run, running

pytestmark = pytest.mark.anyio
MOTO = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl" / "moto" / "bin" / "moto_server"
BUCKET = "checkpoints"


class Proxy(BaseHTTPRequestHandler):
    """What stands between a client and the object store, and answers in its place while `fault` says so."""

    store = ""
    fault: str | None = None
    """A method and a part of a path: a request that has both is answered with 503."""
    deleting = False
    """Whether to refuse what deletes."""
    faults = 0

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = type(self).fault
        refused = fault is not None and self.command == fault.split()[0] and fault.split()[1] in self.path
        deletes = self.command == "DELETE" or (self.command == "POST" and "delete" in self.path)
        if refused or (deletes and type(self).deleting):
            type(self).faults += 1
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>", Message())
            return
        # Not urllib, which says of every body that it is a form.
        connection = http.client.HTTPConnection(self.store.removeprefix("http://"), timeout=40)
        with closing(connection):
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            self._answer(answer.status, answer.read(), answer.headers)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

    def _answer(self, status: int, body: bytes, headers: Message) -> None:
        self.send_response(status)
        ours = ("content-length", "connection", "server", "date")
        kept = {name: value for name, value in headers.items() if name.lower() not in ours}
        length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(body))
        for name, value in {**kept, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    def log_message(self, *args: Any) -> None:
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


def whole_at(url: CheckpointUrl) -> dict[str, bool]:
    """The checkpoints that are at the URL, and whether each is whole."""
    return {name: MANIFEST in files for name, files in url.files().items()}


def record(run_dir: Path) -> None:
    """A run that is not there yet under its name in the object store."""
    record_run(run_dir, steps=4)


async def checkpoint(trainer: TrainerSupervisor, *steps: int) -> None:
    for step in steps:
        await trainer.step(batch(step))
    await trainer.checkpoint()
    await trainer.commit()


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_what_is_kept_is_at_the_url_and_comes_back_from_it(tmp_path: Path, through: type[Proxy]) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(record, run_dir)
    async with run_at_url(run_dir, said) as (trainer, url):
        for step in (1, 2, 3):
            await checkpoint(trainer, step)
        kept = await in_thread(whole_at, url)
        assert kept == {path.name: True for path in await in_thread(whole_checkpoints, run_dir)}
        assert "step-000003" in kept
        assert len(kept) == 2, "the newest, and the best"
    here = checkpoint_directory(run_dir, 3)
    whole = await in_thread(lambda: (here / "model.safetensors").read_bytes())
    await in_thread((here / "model.safetensors").unlink)
    async with run_at_url(run_dir, said) as (trainer, url):
        assert trainer.weights.version == 3
        assert await in_thread(lambda: (here / "model.safetensors").read_bytes()) == whole
        assert "it was fetched from s3://" in said[-1]
        await in_thread(
            url._files.pipe_file, f"{url._root}/step-000003/model.safetensors", whole[:-1] + bytes([whole[-1] ^ 1])
        )
    # Damaged in both places: its batches are trained again.
    await in_thread((here / "model.safetensors").unlink)
    async with run_at_url(run_dir, said) as (trainer, url):
        assert trainer.weights.version == 3
        assert any("cannot be had from its URL" in text for text in said)
    assert (await in_thread(audit, run_dir)).violations == []


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_a_checkpoint_that_is_not_whole_at_the_url_does_not_count(tmp_path: Path, through: type[Proxy]) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(record, run_dir)
    async with run_at_url(run_dir, said) as (trainer, url):
        await checkpoint(trainer, 1)
        through.fault = f"PUT {MANIFEST}"
        with pytest.raises(TrainerError, match=r"step-000002 cannot be written to s3://.*What was committed is safe"):
            await checkpoint(trainer, 2)
        assert through.faults
        assert await in_thread(whole_at, url) == {"step-000001": True, "step-000002": False}
        with pytest.raises(CheckpointError, match="is not there"):
            await in_thread(url.get, tmp_path / "fetched" / "step-000002")
    with await in_thread(Store, run_dir / "store.sqlite") as store:
        assert (await in_thread(store.kept_checkpoints))[-1][0] == 1
    through.fault = None
    async with run_at_url(run_dir, said) as (trainer, url):
        assert await in_thread(whole_at, url) == {"step-000001": True}, "what is left of the other is deleted"
        await checkpoint(trainer, 2)
        assert (await in_thread(whole_at, url))["step-000002"]
    assert (await in_thread(audit, run_dir)).violations == []


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_a_store_that_cannot_delete_costs_room_until_the_next_start(tmp_path: Path, through: type[Proxy]) -> None:
    run_dir, said = tmp_path / "run", list[str]()
    await in_thread(record, run_dir)
    async with run_at_url(run_dir, said) as (trainer, url):
        await checkpoint(trainer, 1)
        await checkpoint(trainer, 2)
        through.deleting = True
        await checkpoint(trainer, 3)
        assert through.faults
        assert len(await in_thread(whole_at, url)) == 3
        through.deleting = False
    async with run_at_url(run_dir, said) as (_, url):
        kept = await in_thread(whole_checkpoints, run_dir)
        assert await in_thread(whole_at, url) == {path.name: True for path in kept}
        assert len(kept) == 2


def test_a_url_that_nothing_speaks_to_is_refused_before_anything_runs() -> None:
    config = RunConfig.model_validate(
        {
            "run_dir": "runs/one",
            "model": {"path": "m"},
            "trainer": {"checkpoint": {"url": "nothing://user:secret@host/x"}},
        }
    )
    with pytest.raises(ConfigError, match=r"`trainer.checkpoint.url` = 'nothing://host/x': nothing that is installed"):
        checkpoint_url(config)


def test_a_folder_is_a_url_too(tmp_path: Path) -> None:
    record_run(tmp_path / "run", steps=1, checkpoint={"url": (tmp_path / "far").as_uri()})
    process = TrainerOfRun(tmp_path / "run", tmp_path / "weights")
    process.load(None)
    stepped = process.step_on(batch(1))
    here = checkpoint_directory(tmp_path / "run", 1)
    process.save(str(here), 1)
    process.saved()
    url = CheckpointUrl((tmp_path / "far").as_uri(), "run")
    url.put(here)
    assert whole_at(url) == {here.name: True}
    with Store(tmp_path / "run" / "store.sqlite") as store:
        store.begin_checkpoint(here)
        store.commit_checkpoint(here, 1, [TrainedStep.from_json(stepped["trained"])])
    assert audit(tmp_path / "run").violations == []
    (tmp_path / "far" / "run" / here.name / "config.json").unlink()
    (violation,) = audit(tmp_path / "run").violations
    assert f"{here.name} has no config.json of" in violation
    with pytest.raises(CheckpointError, match=r"config\.json is not there"):
        url.get(tmp_path / "back" / here.name)
    url.put(here)
    url.get(tmp_path / "back" / here.name)
    assert check_files(tmp_path / "back" / here.name) == check_files(here)
    url.remove(here.name)
    assert whole_at(url) == {}
