"""The bounds of every sandbox: known to what reads tasks, before anything starts, and to what runs them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

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
VERIFIERS = ("/tests", "/logs")
"""Where a terminal task's verifier finds its tests, and writes its reward."""
_OWN = ("/tmp", "/dev", "/proc", "/sys", WORK)  # noqa: S108
"""Folders that a sandbox has of its own, with all that is below."""
_SYSTEM = ("/", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")


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


def check_writable(folders: Iterable[str]) -> None:
    """Check that an image's folders can be the agent's to write to.

    Raises:
        ValueError: One cannot; the message says why, and what to do.
    """
    folders = sorted({*folders})
    for folder in folders:
        if folder in _SYSTEM or any(f"{folder}/".startswith(f"{own}/") for own in _OWN):
            raise ValueError(
                f"{folder} cannot be the agent's to write to: a sandbox has its own there; set environment.workdir, or WORKDIR in the "
                "Dockerfile, to a folder such as /app"
            )
        if any(other != folder and folder.startswith(f"{other}/") for other in folders):
            raise ValueError(
                f"{folder} is below another folder of metadata.agentrl.writable, or of the WORKDIR; leave it out"
            )
        if any(f"{folder}/".startswith(f"{place}/") for place in VERIFIERS):
            raise ValueError(
                f"{folder} is where the verifier finds its tests, or its reward; work in another folder, such as /app"
            )


def memory_of_this_machine_mb() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
