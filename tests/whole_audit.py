"""The audit of a run as `agentrl audit` makes it: the tensors of its checkpoints read too."""

from __future__ import annotations

from pathlib import Path

from agentrl.run.audit import Audit
from agentrl.run.audit import audit as run_audit
from agentrl.trainer.model.checkpoint import read_state


def audit(run_dir: Path) -> Audit:
    return run_audit(run_dir, read_state)
