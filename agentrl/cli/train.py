"""`agentrl train`: one run of training."""

from __future__ import annotations

import json

from agentrl.cli.configuration import run_configuration
from agentrl.cli.options import NO_FILES, NO_KEYS, Files, Keys, Resume, ViewFlag, Workflow


def train(
    workflow: Workflow = None,
    /,
    *,
    resume: Resume = None,
    show: ViewFlag = False,
    config: Files = NO_FILES,
    keys: Keys = NO_KEYS,
) -> int:
    """Train a model on a workflow."""
    from agentrl.cli.terminal import terminal_view
    from agentrl.cli.view import shown_beside
    from agentrl.run.train import train as run_training
    from agentrl.system.event_loop import run_loop

    required = "workflow", "tasks", "model.path"
    chosen = run_configuration(keys, config, workflow, *required, resume=resume, run_dir="runs/%Y-%m-%d-%H%M%S")
    with shown_beside(chosen.run_dir if show else None), terminal_view(chosen) as view:
        run = run_loop(lambda: run_training(chosen, resume=resume is not None, view=view))
    if run.status == "stopped":
        print(f"interrupted at step {view.step}; go on with: agentrl train --resume {chosen.run_dir}")
        return 130
    print(json.dumps(run.summary, indent=2))
    return 0
