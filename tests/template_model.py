"""The nano model with a chat template, which it has not itself: a renderer knows its kind."""

from __future__ import annotations

import shutil
from pathlib import Path

from agentrl.models import NANO


def model_with_template(folder: Path, template: str) -> Path:
    """Copy the nano model to `folder`, with the chat template `template`."""
    shutil.copytree(NANO, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder
