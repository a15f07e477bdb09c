"""Settings that a process makes for itself: its limit of open files, its garbage collector, and the proxy that its clients ask."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

RESERVED_FILES = 96
"""Open files for the store, logs, listeners, control calls, child processes, and what libraries open."""
FILES_AN_EPISODE = 4
"""A connection to the engine, both ends of one from an agent, and what its environment holds."""
MIN_STREAMS = 8
MAX_STREAMS = 2**20
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The names of this machine that no other machine reaches."""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # a container may forbid what its limits allow
        return soft
    return hard


def streams_within_limits() -> int:
    """Return how many replies may be streamed at the same time: half of the open files that are left, the rest is for their agents."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_STREAMS if limit == resource.RLIM_INFINITY else max(MIN_STREAMS, (limit - RESERVED_FILES) // 2)


def shortages(episodes: int) -> Iterator[str]:
    """Raise the limit of open files as far as it goes; yield a warning where it is too low for so many episodes at once."""
    files, needed = raise_file_limit(), RESERVED_FILES + FILES_AN_EPISODE * episodes
    if files != resource.RLIM_INFINITY and files < needed:
        yield (
            f"{episodes} episodes at once may need {needed:,} open files, and this process may have {files:,}: at most "
            f"{streams_within_limits()} replies are generated at the same time. Raise the limit (ulimit -n {needed}), or lower "
            "rollout.max_concurrent"
        )


@contextmanager
def loading() -> Iterator[None]:
    """Import within the context what the process keeps until it ends.

    The garbage collector rests within it, and never searches what was imported. Of the time that it takes to import torch and
    transformers, searches are a sixth.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def settled() -> Iterator[None]:
    """Search for garbage now, and leave all that is there out of every search within the context.

    A search that looks at each object of all modules and of a tokenizer holds the event loop up for a fifth of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def is_loopback(url: str) -> bool:
    """Return whether a URL names this machine: its client then reads nothing from the environment (`trust_env=False`)."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):  # a name
        address = ip_address(host.removeprefix("::ffff:"))
        return address.is_loopback or address.is_unspecified
    return host == "localhost"


def exempt_loopback() -> None:
    """Add the loopback to NO_PROXY of this process, and so of the agents, servers and workers that it starts.

    Those servers are on this machine; the proxy that HTTP_PROXY names is on another one, where 127.0.0.1 is the proxy itself. Both
    spellings become alike, as some clients look at one only.
    """
    hosts = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",")
    if hosts != ["*"]:
        ours = (*LOOPBACK, "0.0.0.0")  # noqa: S104  # as servers print their address
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*filter(None, hosts), *ours]))
