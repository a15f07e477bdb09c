"""Checkpoints for tests of the store and the audit: a policy of one number, trained on nothing, and everything about it true."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from agentrl.rollout.manifest import Manifest, write_manifest
from agentrl.rollout.store import Store
from agentrl.rollout.training_history import TrainedStep, trained_step
from agentrl.trainer.model.checkpoint import state_on_disk
from agentrl.trainer.model.digest import digest
from agentrl.trainer.model.ranks import Ranks

Batch = tuple[int, Sequence[int]]
"""(step, group ids)."""


def trained(before: str, step: int, groups: Sequence[int], digest_: str = "d") -> TrainedStep:
    """A step of one optimizer step over two sequences of each group."""
    sizes = tuple((group, 2) for group in sorted(groups))
    return trained_step(before, step, sizes, [[(group, i) for group in groups for i in range(2)]], 1, digest_)


def manifest_of(store: Store, step: int, batches: Sequence[Batch], digest_: str = "d") -> Manifest:
    """The manifest of the checkpoint of `step`, which contains `batches` beside those that the store knows."""
    with store._lock:
        rows = store._db.execute("SELECT value FROM run_values WHERE name = 'chain'").fetchall()
    since = store.batches()[-1].trained.chain if store.batches() else (rows[0][0] if rows else "")
    history: list[TrainedStep] = []
    for number, groups in batches:
        history.append(trained(history[-1].chain if history else since, number, groups, digest_))
    chain = history[-1].chain if history else since
    return Manifest(step, len(store.batches()) + len(batches), digest_, chain, since, tuple(history))


def commit(store: Store, step: int, path: Path, batches: Sequence[Batch]) -> None:
    """Record a checkpoint that has no files."""
    store.commit_checkpoint(path, manifest_of(store, step, batches), [groups for _, groups in batches])


def commit_whole(store: Store, step: int, path: Path, batches: Sequence[Batch]) -> None:
    """Record a checkpoint whose files are there."""
    (path / "optimizer").mkdir(parents=True)
    taken = float(len(store.batches()) + len(batches))
    save_file({"w": torch.tensor([float(step), 2.0])}, path / "model.safetensors")
    save_file({"w.step": torch.tensor(taken), "w.exp_avg": torch.ones(2)}, path / "optimizer" / "state.safetensors")
    manifest = manifest_of(store, step, batches, digest(state_on_disk(path), Ranks()))
    write_manifest(path, manifest)
    store.commit_checkpoint(path, manifest, [groups for _, groups in batches])
