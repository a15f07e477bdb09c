"""The bounds of every sandbox: known to what reads tasks, before anything starts, and to what runs them."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

WORK = "/sandbox"
"""The folder of the user's files, and where programs run."""
MAX_PACKED_BYTES = 32 * 2**20
"""Of the files in a snapshot of a sandbox."""
FILES = 16_384
"""Files in a folder of memory."""
MEMORY_MB = 16, 2**22
"""The least that a sandbox's own process lives with, and more than any machine has."""
CPUS = 0.01, 1024.0
"""The least that a Docker engine gives, and more than any machine has."""
LONGEST_S = 30 * 24 * 3600.0
IMAGE_NAME = re.compile(
    r"""(?: (?: [a-zA-Z0-9] [a-zA-Z0-9-]* (?:\.[a-zA-Z0-9-]+)* | \[ [0-9a-fA-F:]+ \] ) (?: :\d+ )? / )?
    [a-z0-9]+ (?: (?:\.|_|__|-+) [a-z0-9]+ )* (?: / [a-z0-9]+ (?: (?:\.|_|__|-+) [a-z0-9]+ )* )*
    (?: :\w[\w.-]{0,127} )? (?: @sha256:[0-9a-f]{64} )?""",
    re.VERBOSE | re.ASCII,
)
"""A name of an image, as Docker has them."""


def check_image_name(name: str) -> str:
    """Return a name of an image.

    Raises:
        ValueError: No image can have it.
    """
    if not IMAGE_NAME.fullmatch(name):
        raise ValueError(
            f"{name[:200]!r} can be no image's name; write one such as python:3.12-slim, in small letters and without spaces"
        )
    return name


def memory_of_this_machine_mb() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


@cache
def _context_of_the_user() -> str:
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    try:
        return str(json.loads(Path(folder, "config.json").read_text())["currentContext"])
    except (OSError, ValueError, KeyError, TypeError):
        return "default"


def engine_is_here() -> bool:
    """Return whether the Docker engine that would run containers is on this machine, as far as the environment says."""
    if address := os.environ.get("DOCKER_HOST"):
        return address.startswith("unix:")
    return (os.environ.get("DOCKER_CONTEXT") or _context_of_the_user()) == "default"
