"""The image of a task that comes as a folder: built from its Dockerfile, and made into one that a sandbox can run.

    Dockerfile or image ─► as its author meant it ─► its working folder is taken out of it ─► links in the folder's place
                                                          └─► the files that every sandbox of the task begins with

A sandbox's root is read-only, and what its programs write is in /sandbox. So each folder that the task's programs may write to
becomes a link to a place there. Everything else is the image's, for whoever has worked in the sandbox, and for its tests too.

Building goes by the Docker engine, once for each content of the folder and each process; the engine's own cache does the rest.
"""

from __future__ import annotations

import io
import shlex
import sys
import tarfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, one_line
from agentrl.sandboxes.backends.docker_connection import connect, engine_address, sdk_errors
from agentrl.sandboxes.backends.docker_engine import follow, have_image
from agentrl.sandboxes.inside.files import MAX_PACKED_BYTES
from agentrl.sandboxes.seams import WORK

if TYPE_CHECKING:
    import requests
    from docker import DockerClient

REPOSITORY = "agentrl/task"
TOO_SLOW = "it was not built in time; raise environment.build_timeout_sec"
LINKED = ("/tests", "/logs", "/solution")
"""Places of the task form, which only its verifier and its reference solution find filled."""
NOT_WRITABLE = ("/", "/tmp", "/dev", "/proc", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", WORK)  # noqa: S108
_NEVER_BELOW = ("/tmp", "/dev", "/proc", "/sys", WORK)  # noqa: S108
SILENCE_S = 2.0
"""How much longer than its time a build may be silent before it is given up."""


@dataclass(frozen=True)
class ImageSource:
    """What an image is made of."""

    name: str
    """The task's, for messages."""
    digest: str
    """Of everything that the image is made of."""
    context: Path
    """The folder that it is built from."""
    image: str | None
    """An image that exists, in place of a Dockerfile."""
    workdir: str | None
    writable: tuple[str, ...]
    timeout_s: float
    """How long building may take."""


@dataclass(frozen=True)
class TaskImage:
    """An image that sandboxes run, and what they begin with."""

    image: str
    workdir: str
    writable: tuple[str, ...]
    """The folders whose files are the agent's, the working folder among them."""
    env: Mapping[str, str]
    """The variables that the image sets."""
    start: bytes
    """A snapshot for `Sandbox.restore`: the files of the writable folders as the image had them."""


async def task_image(source: ImageSource) -> TaskImage:
    """Return the image, built if it is missing.

    Raises:
        SandboxError: It cannot be built within its time, or cannot be run as a sandbox; the message names the task and the remedy.
    """

    def make() -> TaskImage:
        with sdk_errors("the Docker engine"):
            return _once(source)

    try:
        return await in_thread(make)
    except SandboxError as error:
        raise SandboxError(f"the image of the task {source.name}: {error}") from error


_locks: dict[ImageSource, threading.Lock] = {}


def _once(source: ImageSource) -> TaskImage:
    """Return the image; one of several that ask for it at the same time builds it."""
    with _locks.setdefault(source, threading.Lock()):
        return _kept(source)


@lru_cache(maxsize=32)
def _kept(source: ImageSource) -> TaskImage:
    with closing(connect(engine_address())) as client, ExitStack() as ends:

        def close_at_the_end(response: requests.Response, **_: Any) -> None:
            ends.callback(response.close)  # the SDK leaves what was not read whole to the garbage collector

        client.api.hooks["response"].append(close_at_the_end)
        return _made(client, source)


def _made(client: DockerClient, source: ImageSource) -> TaskImage:
    deadline = time.monotonic() + source.timeout_s
    if source.image is None:
        base = f"{REPOSITORY}-base:{source.digest}"
        if not client.images.list(base):
            _say(f"building the image of the task {source.name} from {source.context / 'Dockerfile'}")
            _build(client, base, deadline, path=str(source.context))
    else:
        base = source.image
        have_image(client, base, _say)
    details = client.api.inspect_image(base)
    config = details["Config"]
    workdir = source.workdir or config.get("WorkingDir") or "/"
    writable = tuple(sorted({workdir, *source.writable}))
    _check(writable)
    env = dict(line.partition("=")[::2] for line in config.get("Env") or ())
    start = _files(client, base, writable)
    image = f"{REPOSITORY}:{source.digest}-{details['Id'].removeprefix('sha256:')[:12]}"
    if not client.images.list(image):
        _build(client, image, deadline, fileobj=_dockerfile(base, writable), custom_context=True)
    return TaskImage(image, workdir, writable, env, start)


def _check(writable: Iterable[str]) -> None:
    for folder in writable:
        if folder in NOT_WRITABLE or any(folder.startswith(f"{above}/") for above in _NEVER_BELOW):
            raise SandboxError(
                f"{folder} cannot be the agent's to write to: a sandbox has its own there; set environment.workdir, or WORKDIR in the "
                "Dockerfile, to a folder such as /app"
            )
        if any(other != folder and folder.startswith(f"{other}/") for other in writable):
            raise SandboxError(
                f"{folder} is below another folder of metadata.agentrl.writable, or of the WORKDIR; leave it out"
            )
        if any(f"{folder}/".startswith(f"{place}/") for place in LINKED[:2]):
            raise SandboxError(
                f"{folder} is where the verifier finds its tests, or its reward; work in another folder, such as /app"
            )


def _dockerfile(base: str, writable: Iterable[str]) -> io.BytesIO:
    links = [
        f"rm -rf {quoted} && mkdir -p {shlex.quote(str(Path(folder).parent))} && ln -s {shlex.quote(WORK + folder)} {quoted}"
        for folder in dict.fromkeys((*LINKED, *writable))
        for quoted in [shlex.quote(folder)]
    ]
    python = "python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'"
    no_python = (
        "echo 'it has no python3 of 3.10 or later, which a sandbox needs; install one in its Dockerfile' && false"
    )
    text = "\n".join(
        [
            f"FROM {base}",
            "USER root",
            "WORKDIR /",
            f"RUN {python} || {{ {no_python}; }}",
            f"RUN {' && '.join(links)}",
            "",
        ]
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as context:
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(text.encode())
        context.addfile(info, io.BytesIO(text.encode()))
    packed.seek(0)
    return packed


def _build(client: DockerClient, tag: str, deadline: float, **options: Any) -> None:
    """Build an image by a deadline; a step that says nothing may take as long again.

    Raises:
        SandboxError: It cannot be built, or not in time.
    """
    import requests
    import urllib3

    left_s = max(1.0, deadline - time.monotonic())
    said: list[str] = []
    try:
        events = client.api.build(tag=tag, rm=True, forcerm=True, decode=True, timeout=left_s + SILENCE_S, **options)
        follow(_until(deadline, events), said.append)
    except (TimeoutError, urllib3.exceptions.TimeoutError, requests.Timeout, requests.ConnectionError) as error:
        raise SandboxError(f"{TOO_SLOW} ({one_line(error)})") from error
    except SandboxError as error:
        shown = " | ".join(line for text in said[-6:] for line in text.splitlines()[-1:])
        raise SandboxError(f"{error}{shown and f' (it said: {one_line(shown, 600)})'}") from None


def _until(deadline: float, events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in events:
        if time.monotonic() > deadline:
            raise SandboxError(TOO_SLOW)
        yield event


def _files(client: DockerClient, image: str, folders: Iterable[str]) -> bytes:
    """Return the files of an image's folders, as a snapshot of a sandbox has them.

    Raises:
        SandboxError: They are too large for one.
    """
    import docker.errors

    result = io.BytesIO()
    container = client.api.create_container(image, command=["true"], entrypoint=[])["Id"]
    try:
        with tarfile.open(fileobj=result, mode="w") as packed:
            for folder in folders:
                try:
                    chunks, _ = client.api.get_archive(container, folder)
                except docker.errors.NotFound:
                    continue
                _add(packed, folder, _whole(chunks, folder))
    finally:
        client.api.remove_container(container, force=True, v=True)
    return result.getvalue()


def _whole(chunks: Iterable[bytes], folder: str) -> bytes:
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > MAX_PACKED_BYTES:
            raise SandboxError(
                f"{folder} holds more than the {MAX_PACKED_BYTES >> 20} MB that a sandbox's snapshot has room for; put what is only read elsewhere"
            )
    return bytes(data)


def _add(packed: tarfile.TarFile, folder: str, archive: bytes) -> None:
    """Add an archive as the engine makes it, whose first folder is the last part of `folder`."""
    top = Path(folder).name
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        for one in found:
            below = one.name.removeprefix(top).strip("/")
            one.name = f"{folder.strip('/')}/{below}".rstrip("/")
            if one.islnk():
                one.linkname = f"{folder.strip('/')}/{one.linkname.removeprefix(top).strip('/')}"
            if one.isdir():
                one.mode |= 0o700
            if one.isdir() or one.isreg() or one.issym() or one.islnk():
                packed.addfile(one, found.extractfile(one) if one.isreg() else None)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
