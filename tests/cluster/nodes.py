"""Ray clusters of several nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

RAY_WARNINGS = [
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning:ray.*", "ignore::FutureWarning:ray.*", "ignore::ResourceWarning"
    )
]
"""Marks of tests that use Ray, which does not go by its own warnings."""


def of_a_node(room: int = 4, name: str = "room") -> dict[str, Any]:
    """What a node has. Ray starts a process for each of its CPUs."""
    resources = {name: room} if room else {}
    return {"num_cpus": room, "resources": resources, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@contextmanager
def open_nodes(*rooms: int) -> Iterator[Any]:
    """A cluster of several nodes, each with room for so many workers and servers."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    opened = cluster_utils.Cluster()
    try:
        for room in rooms:
            opened.add_node(**of_a_node(room))
        yield opened
    finally:
        opened.shutdown()
