"""Find, before a run is started, what its tasks need of containers and cannot have: a Docker engine, images.

No image is fetched for this: a run may have one for each task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, one_line
from agentrl.sandboxes.backends.docker_connection import EngineAddress, connect, engine_address, sdk_errors

LOOKS_AT_ONCE = 8
"""Images that registries are asked for at the same time."""


async def missing_images(images: Mapping[str, str]) -> list[str]:
    """Return what images need that a Docker engine is to run: the engine itself, or those that neither it nor a registry has.

    Args:
        images: The images, each with the name of a task that needs it. May be empty.
    """

    def look() -> list[str]:
        try:
            engine = engine_address()
            absent = _not_on(engine, list(images))
        except SandboxError as error:
            return [f"the images of the tasks run on a Docker engine, and there is none: {error}"]
        with ThreadPoolExecutor(LOOKS_AT_ONCE, "registry") as threads:
            reasons = list(threads.map(lambda image: _why_not_in_a_registry(engine, image), absent))
        return [
            f"the image {image!r}, which the task {images[image]} names, is neither on the Docker engine nor to be had from a registry "
            f"({why}); correct its name, or build or load it there"
            for image, why in zip(absent, reasons, strict=True)
            if why
        ]

    return await in_thread(look)


def _not_on(engine: EngineAddress, images: Sequence[str]) -> list[str]:
    """Return those of some images that an engine does not have.

    Raises:
        SandboxError: The SDK is not installed, or the engine does not answer.
    """
    with sdk_errors("the Docker engine"), closing(connect(engine)) as client:
        import docker.errors

        absent = []
        for image in images:
            try:
                client.images.get(image)
            except docker.errors.ImageNotFound:
                absent.append(image)
        return absent


def _why_not_in_a_registry(engine: EngineAddress, image: str) -> str:
    """Return why an image cannot be had from the registry that its name says; empty where it can."""
    try:
        with sdk_errors("its registry"), closing(connect(engine)) as client:
            client.images.get_registry_data(image)
    except SandboxError as error:
        return one_line(error, 200)
    return ""
