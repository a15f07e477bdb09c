"""Tasks of verifiers, as far as they need none of it: tests/workflows/test_verifiers.py has the rest, in the soak."""

from __future__ import annotations

import pytest

from agentrl.errors import TaskFileError
from agentrl.tasks import verifiers_tasks
from agentrl.tasks.tasks import list_tasks


def test_a_python_that_is_not_there_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers_tasks, "_server", None)
    monkeypatch.setenv("AGENTRL_VERIFIERS_PYTHON", "/nowhere/python")
    with pytest.raises(TaskFileError, match=r"no Python at /nowhere/python; install it with scripts/install_verifiers"):
        list_tasks("verifiers:vf-capitals")
