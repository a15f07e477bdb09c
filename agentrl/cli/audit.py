"""`agentrl audit`: what became of everything in a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from agentrl.cli.options import JsonFlag


def audit(run_dir: Path, /, *, as_json: JsonFlag = False) -> int:
    """Prove from a run's store and checkpoints that nothing was lost.

    Args:
        run_dir: Directory of the run.
        as_json: Print everything as JSON.
    """
    from agentrl.cli.terminal import show_audit
    from agentrl.run.audit import audit as run_audit

    found = run_audit(run_dir)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show_audit(found)
    return 1 if found.violations else 0
