"""`agentrl eval`: a workflow over tasks, nothing trained."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.configuration import configuration
from agentrl.cli.options import NO_FILES, NO_KEYS, EvalKeys, Files, Flag, JsonFlag, ViewFlag, Workflow


def evaluate(
    workflow: Workflow = None,
    /,
    *,
    base_url: Annotated[str | None, Parameter(negative=())] = None,
    api_key: Annotated[str | None, Parameter(negative=())] = None,
    out: Annotated[Path | None, Parameter(negative=())] = None,
    per_task: Flag = False,
    as_json: JsonFlag = False,
    show: ViewFlag = False,
    config: Files = NO_FILES,
    keys: EvalKeys = NO_KEYS,
) -> int:
    """Run a workflow over tasks, without training. Exit code 1: every episode failed.

    Args:
        workflow: Python file with `async def run(episode)`.
        base_url: An OpenAI-compatible endpoint, for which `--model` is a name. Default: the model is served here.
        api_key: The endpoint's key. Default: $OPENAI_API_KEY.
        out: Directory that keeps the episodes, with what was said in them. Given again, the evaluation goes on where it was
            interrupted. Default: one in `evaluations/` that is named by the time.
        per_task: Print a table of the tasks too, the hardest first.
        as_json: Print everything as JSON, and no table.
        show: Show it on a page while it goes on; its address is printed.
        config: TOML files of keys.
        keys: The keys that were typed.
    """
    from agentrl.cli.evaluation_view import evaluation_view, show_evaluation
    from agentrl.cli.foreground import run_until_signal
    from agentrl.cli.view import shown_beside
    from agentrl.evaluation.directory import new_directory
    from agentrl.evaluation.evaluate import evaluate as run_evaluation

    chosen = configuration(keys, config, workflow, "workflow", "tasks", "model.path")
    key = api_key or os.environ.get("OPENAI_API_KEY", "-")
    out = new_directory() if show and out is None else out
    with shown_beside(out if show else None, sys.stderr), evaluation_view() as view:
        result = run_until_signal(lambda: run_evaluation(chosen, base_url=base_url, api_key=key, out=out, view=view))
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        show_evaluation(result, per_task=per_task)
    return 0 if result.failed < len(result.episodes) else 1
