"""Environments of the `verifiers` library as a source of tasks.

    verifiers:ENV[?ARGS] ─► the tasks of its taskset ─► a task of workflows/verifiers_env.py for each
                               ▲
    verifiers_server.py ───────┘ a process of the Python that has the library, which wants an older openai than agentrl

ENV is the name of an installed taskset (`gsm8k-v1`, or with its owner `primeintellect/gsm8k-v1`). ARGS are the library's `[env]` block as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError

from agentrl.episode import Task
from agentrl.errors import TaskFileError, one_line
from agentrl.tasks.task_type import problems_of

PYTHON = Path("~/.cache/agentrl/verifiers-0.4/bin/python")
"""Where scripts/install_verifiers.sh puts it; AGENTRL_VERIFIERS_PYTHON names another."""
START_TIMEOUT_S = 120.0
TASKS_TIMEOUT_S = 600.0


_server: tuple[subprocess.Popen[str], str] | None = None
"""The process that serves environments, and its address."""
_starting = threading.Lock()


def tasks_of_environment(source: str) -> list[Task]:
    """Return a task for each one of an environment.

    Args:
        source: ENV[?ARGS], as the top of this file describes it.

    Raises:
        TaskFileError: The source is malformed, or the environment cannot be loaded.
    """
    name, _, written = source.partition("?")
    try:
        args = TypeAdapter(dict[str, Any]).validate_json(written or "{}")
    except ValidationError as error:
        raise TaskFileError(
            f"verifiers:{source}: {problems_of(error)}; write verifiers:ENV, or with its [env] block as JSON, "
            'verifiers:ENV?{"agent": {"max_turns": 4}}'
        ) from None
    return [{"environment": name, "args": args, "row": row} for row in range(count_tasks(name, args))]


def count_tasks(name: str, args: dict[str, Any]) -> int:
    """Return how many tasks an environment has.

    Raises:
        TaskFileError: It cannot be loaded.
    """
    asked = {"env": env_block(name, args)}
    try:
        answer = httpx.post(f"{server_url()}/tasks", json=asked, timeout=TASKS_TIMEOUT_S, trust_env=False).json()
    except httpx.HTTPError as error:
        raise TaskFileError(f"the server of verifiers environments does not answer: {one_line(repr(error))}") from error
    if "error" in answer:
        raise TaskFileError(f"the verifiers environment {name!r} cannot be loaded: {one_line(answer['error'])}")
    return int(answer["tasks"])


def env_block(name: str, args: dict[str, Any]) -> str:
    """Return the library's `[env]` block of an environment, as JSON."""
    return json.dumps({**args, "taskset": {**args.get("taskset", {}), "id": name}}, sort_keys=True)


def server_url() -> str:
    """Return the address of the server of environments; it is started by the first call, and where it has ended. It blocks.

    Raises:
        TaskFileError: It cannot be started.
    """
    global _server
    with _starting:
        if _server is None or _server[0].poll() is not None:
            _server = _started()
        return _server[1]


def _started() -> tuple[subprocess.Popen[str], str]:
    python = Path(os.environ.get("AGENTRL_VERIFIERS_PYTHON") or PYTHON.expanduser())
    if not python.exists():
        raise TaskFileError(
            f"verifiers has no Python at {python}; install it with scripts/install_verifiers.sh, or name yours in AGENTRL_VERIFIERS_PYTHON"
        )
    pipe, program = subprocess.PIPE, Path(__file__).with_name("verifiers_server.py")
    with tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(  # noqa: S603
            [python, "-P", program], stdin=pipe, stdout=pipe, stderr=stderr, text=True, start_new_session=True
        )
        assert process.stdout is not None
        bound = threading.Timer(START_TIMEOUT_S, process.kill)
        bound.start()
        port = process.stdout.readline().strip()
        bound.cancel()
        if not port:
            process.communicate()
            stderr.seek(0)
            raise TaskFileError(f"the server of verifiers environments ended: {one_line(stderr.read()[-500:])}")
    return process, f"http://127.0.0.1:{port}"
