"""Images on a Docker engine: fetched, built as their author meant them, or found missing before a run.

The image of a task that comes as a folder is named by a digest of the folder's content, so that it is built once; the engine's own cache
does the rest.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from agentrl.errors import SandboxError, one_line
from agentrl.sandboxes.backends.docker_connection import docker_errors, find_engine
from agentrl.sandboxes.sandbox import DEFAULT_IMAGE
from agentrl.system.tasks import in_thread

if TYPE_CHECKING:
    from docker import APIClient

IMAGES = Path(__file__).parents[1] / "images"
REPOSITORY = "agentrl/task"
LOOKUPS_AT_ONCE = 8
"""Images that registries are asked for at the same time."""
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
        with _locks[tag], find_engine().client() as client:
            if not client.images(tag):
                show(f"building the image of the task {source.name} from {source.context / 'Dockerfile'}")
                _build(client, source, tag)
        return tag

    try:
        return await in_thread(build)
    except SandboxError as error:
        raise SandboxError(f"the image of the task {source.name}: {error}") from error


def _build(client: APIClient, source: ImageSource, tag: str) -> None:
    deadline = time.monotonic() + source.timeout_s
    lines: list[str] = []
    try:
        with docker_errors():
            events = client.build(
                path=str(source.context), tag=tag, rm=True, forcerm=True, decode=True, timeout=source.timeout_s
            )
            follow(events, lines.append, deadline)
    except SandboxError as error:
        if time.monotonic() >= deadline:
            raise SandboxError("it was not built in time; raise environment.build_timeout_sec") from error
        shown = " | ".join(line for text in lines[-6:] for line in text.splitlines()[-1:])
        raise SandboxError(f"{error} (it said: {one_line(shown, 600)})") from error


def have_image(client: APIClient, image: str) -> None:
    """Fetch an image where it is missing, or build it if it is ours.

    Args:
        client: A client of the engine.
        image: The name of the image.

    Raises:
        SandboxError: The engine did not get it.
    """
    if _is_there(client, image):
        return
    if image == DEFAULT_IMAGE:
        show(f"building the image {image} from {IMAGES / 'Dockerfile'}")
        follow(client.build(path=str(IMAGES), tag=image, rm=True, decode=True), show)
    else:
        from docker.errors import APIError

        show(f"pulling the image {image}")
        try:
            follow(client.pull(image, stream=True, decode=True), show)
        except (SandboxError, APIError) as error:
            raise SandboxError(
                f"the image {image} is not here, and the engine cannot pull it: {one_line(error)}"
            ) from error


def _is_there(client: APIClient, image: str) -> bool:
    from docker.errors import APIError

    try:
        client.inspect_image(image)
    except APIError:  # its name may be none
        return False
    return True


def follow(events: Iterable[dict[str, Any]], on_progress: Callable[[str], None], deadline: float | None = None) -> None:
    """Show the steps of a pull or a build.

    Raises:
        SandboxError: The engine tells of an error, or goes on beyond the deadline.
    """
    for event in events:
        if "error" in event:
            raise SandboxError(f"the Docker engine: {event['error']}")
        if deadline is not None and time.monotonic() > deadline:
            raise SandboxError("it takes too long")
        text = (event.get("stream") or event.get("status") or "").strip()
        if text and not event.get("progressDetail"):
            on_progress(f"{event['id']}: {text}" if "id" in event else text)


def show(line: str) -> None:
    """Show a line to the user."""
    print(line, file=sys.stderr, flush=True)


async def missing_images(images: Mapping[str, str]) -> list[str]:
    """Return what images need that a Docker engine is to run: the engine itself, or those that neither it nor a registry has.

    No image is fetched for this: a run may have one for each task.

    Args:
        images: The images, each with the name of a task that needs it. May be empty.
    """
    try:
        engine = await in_thread(find_engine)
        absent = await engine.call(lambda client: [image for image in images if not _is_there(client, image)])
    except SandboxError as error:
        return [f"the images of the tasks run on a Docker engine, and there is none: {error}"]
    missing: list[str] = []
    at_once = anyio.CapacityLimiter(LOOKUPS_AT_ONCE)

    async def look_up(image: str) -> None:
        async with at_once:
            try:
                await engine.call(lambda client: client.inspect_distribution(image))
            except SandboxError as error:
                missing.append(
                    f"the image {image!r}, which the task {images[image]} names, is neither on the Docker engine nor to be had from a "
                    f"registry ({one_line(error, 200)}); correct its name, or build or load it there"
                )

    async with anyio.create_task_group() as group:
        for image in absent:
            group.start_soon(look_up, image)
    return sorted(missing)
