"""The image of a task that comes as a folder: built from its Dockerfile by the engine, as its author meant it.

Its name is a digest of the folder's content, so that it is built once; the engine's own cache does the rest.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, one_line
from agentrl.sandboxes.backends.docker_connection import own_client, sdk_errors
from agentrl.sandboxes.backends.docker_engine import follow

REPOSITORY = "agentrl/task"
TOO_SLOW = "it was not built in time; raise environment.build_timeout_sec"
SILENCE_S = 2.0
"""How much longer than its time a build may be silent before it is given up."""
_locks: dict[str, threading.Lock] = defaultdict(threading.Lock)


@dataclass(frozen=True)
class ImageSource:
    """A folder with a Dockerfile."""

    name: str
    """The task's, for messages."""
    context: Path
    digest: str
    """Of the folder's content."""
    timeout_s: float
    """How long building may take."""


async def built_image(source: ImageSource) -> str:
    """Return the name of the image of a folder, built if it is missing.

    Raises:
        SandboxError: It cannot be built within its time; the message names the task and what the engine said.
    """

    def build() -> str:
        tag = f"{REPOSITORY}:{source.digest}"
        with _locks[tag], sdk_errors("the Docker engine"), own_client() as client:
            if not client.images.list(tag):
                print(
                    f"building the image of the task {source.name} from {source.context / 'Dockerfile'}",
                    file=sys.stderr,
                    flush=True,
                )
                _build(client.api, source, tag)
        return tag

    try:
        return await in_thread(build)
    except SandboxError as error:
        raise SandboxError(f"the image of the task {source.name}: {error}") from error


def _build(engine: Any, source: ImageSource, tag: str) -> None:
    import requests
    import urllib3

    deadline = time.monotonic() + source.timeout_s
    said: list[str] = []
    try:
        events = engine.build(
            path=str(source.context), tag=tag, rm=True, forcerm=True, decode=True, timeout=source.timeout_s + SILENCE_S
        )
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
