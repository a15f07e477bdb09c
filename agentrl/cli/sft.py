"""`agentrl sft`: supervised fine-tuning on conversations."""

from __future__ import annotations

import json

from agentrl.cli.configuration import run_configuration
from agentrl.cli.options import NO_FILES, NO_KEYS, Files, Keys, Resume
from agentrl.system.imports import check_extra


def sft(*, resume: Resume = None, config: Files = NO_FILES, keys: Keys = NO_KEYS) -> int:
    """Train a model on conversations, before or without rewards."""
    check_extra("train", "agentrl sft")
    from agentrl.trainer.sft import fine_tune

    required = "tasks", "model.path"
    run = run_configuration(keys, config, None, *required, resume=resume, run_dir="runs/sft-%Y-%m-%d-%H%M%S")
    print(json.dumps(fine_tune(run, resume=resume is not None), indent=2))
    return 0
