"""A run's store and the files beside it: what one says of the other, before a run goes on and while it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.machine.evidence import stored_json
from agentrl.run.run_directory import check_checkpoints, remove_unfinished
from agentrl.store.store import Store


def begin_store(run_dir: Path, tasks: str, config: str, *, resume: bool) -> Store:
    """Open the store of a run that starts, or starts again, and delete what its last start left half made.

    Args:
        run_dir: The run's directory.
        tasks: What tells the run's tasks from others.
        config: The configuration, as JSON.
        resume: Whether the run goes on.

    Raises:
        StoreError: The store is missing, empty, damaged, older than the checkpoints beside it, or of other tasks. Nothing has been
            deleted then.
    """
    store = Store(run_dir / "store.sqlite", must_exist=resume)
    try:
        if resume:
            store.check()
        unwanted = store.unwanted_checkpoints()
        check_checkpoints(run_dir, store.known_checkpoints())
        store.check_tasks(tasks)
        remove_unfinished(run_dir, unwanted)
        store.begin_restart(tasks, config)
    except BaseException:
        store.close()
        raise
    return store


def known_tasks(run_dir: Path) -> list[str]:
    """Return what tells the tasks of a run's groups 0, 1, ... from others. Raises StoreError."""
    with Store(run_dir / "store.sqlite", must_exist=True) as store:
        return store.task_digests()


def changed_settings(store: Store, after: int) -> str:
    """Return the trainer's settings that are other ones now than when a step after the step `after` was taken, in words; "" for none."""

    def settings(restart: int) -> dict[str, Any]:
        return _flat(stored_json(store.configuration(restart).encode()).get("trainer", {}), "trainer")

    now = settings(store.restart)
    restarts = sorted({batch.restart for batch in store.batches(after)})
    changes = {
        f"{name} = {json.dumps(then)}, now {json.dumps(now.get(name))}": None
        for restart in restarts
        for name, then in settings(restart).items()
        if then != now.get(name)
    }
    return "; ".join(changes)


def _flat(settings: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the settings by their dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{prefix}.{name}") if isinstance(value, dict) else {f"{prefix}.{name}": value}
    return flat
