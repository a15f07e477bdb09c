"""Checkpoints for tests of the store and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.store import batches as steps
from agentrl.store.batches import TrainedStep, trained_step
from agentrl.store.manifest import Manifest, write_manifest
from agentrl.store.store import Store

Batch = tuple[int, Sequence[int]]
"""(step, group ids)."""


def trained(step: int, groups: Sequence[int]) -> TrainedStep:
    """A step of one optimizer step over two sequences of each group."""
    sizes = tuple((group, 2) for group in sorted(groups))
    return trained_step(step, sizes, [[(group, i) for group in groups for i in range(2)]], 1)


def commit(store: Store, step: int, path: Path, batches: Sequence[Batch]) -> None:
    """Record a checkpoint that has no files."""
    store.commit_checkpoint(path, step, [trained(*batch) for batch in batches])


def commit_whole(store: Store, step: int, path: Path, batches: Sequence[Batch]) -> None:
    """Record a checkpoint whose files are there."""
    (path / "optimizer").mkdir(parents=True)
    for name in ("model.safetensors", "optimizer/state.safetensors"):
        (path / name).write_bytes(b"some tensors")
    write_manifest(path, Manifest(step, len(store.read(steps.batches)) + len(batches)))
    commit(store, step, path, batches)
