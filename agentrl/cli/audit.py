"""`agentrl audit`: what became of everything in a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.options import Flag, JsonFlag

if TYPE_CHECKING:
    from agentrl.rollout.manifest import StateOnDisk
    from agentrl.run.audit_training import ReadState


def audit(run_dir: Path, /, *, retrain: Flag = False, as_json: JsonFlag = False) -> int:
    """Prove from a run's store that nothing was lost.

    Args:
        run_dir: Directory of the run.
        retrain: Train the recorded batches from scratch, and compare the weights of every step.
        as_json: Print everything as JSON.
    """
    import anyio

    from agentrl.cli.terminal import show_audit
    from agentrl.run.audit import audit as run_audit
    from agentrl.run.retrain import retrain as run_retraining

    found = run_audit(run_dir, _checkpoint_reader())
    retrained = anyio.run(run_retraining, run_dir) if retrain and not found.violations else None
    if as_json:
        print(json.dumps(asdict(found) | {"retrained": retrained and asdict(retrained)}, indent=2))
    else:
        show_audit(found, retrained)
    return 1 if found.violations or (retrained and retrained.wrong) else 0


def _checkpoint_reader() -> ReadState | None:
    """Return what reads the tensors of a checkpoint, where torch is installed. The audit is given it, and knows no trainer."""
    return _read_state if find_spec("torch") is not None else None


def _read_state(directory: Path) -> StateOnDisk:
    # It loads torch, which takes a while: only where there is a checkpoint.
    from agentrl.trainer.model.checkpoint import read_state

    return read_state(directory)
