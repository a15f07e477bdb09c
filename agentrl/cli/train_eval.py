"""The commands that run a model: `agentrl train`, `sft`, `eval` and `serve`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agentrl.cli.configuration import configuration, run_configuration
from agentrl.cli.options import NO_KEYS, EvalKeys, Files, Flag, JsonFlag, Keys, Resume, ServeKeys, ViewFlag, Workflow


def train(
    workflow: Workflow = None,
    /,
    *,
    resume: Resume = None,
    show: ViewFlag = False,
    config: Files = (),
    keys: Keys = NO_KEYS,
) -> int:
    """Train a model on a workflow."""
    from agentrl.cli.run_tools import shown_on_page
    from agentrl.cli.terminal import print_json, terminal_view
    from agentrl.run.train import train as run_training
    from agentrl.system.event_loop import run_loop

    required = "workflow", "tasks", "model.path"
    chosen = run_configuration(keys, config, workflow, *required, resume=resume, run_dir="runs/%Y-%m-%d-%H%M%S")
    with shown_on_page(chosen.run_dir if show else None), terminal_view(chosen) as view:
        run = run_loop(lambda: run_training(chosen, resume=resume is not None, view=view))
        if run.status == "stopped":
            view.say(f"interrupted at step {view.step}; go on with: agentrl train --resume {chosen.run_dir}")
            return 130
    print_json(run.summary)
    return 0


def sft(
    tasks: str | None = None,
    /,
    *,
    resume: Resume = None,
    config: Files = (),
    keys: Keys = NO_KEYS,
) -> int:
    """Train a model on conversations, before or without rewards.

    Args:
        tasks: File of JSON lines with a conversation in each, short for `--tasks`.
        resume: Go on with the run in this directory, with the configuration that it has.
        config: TOML files of keys.
        keys: The keys that were typed.
    """
    from agentrl.cli.terminal import print_json
    from agentrl.system.imports import check_extra

    check_extra("train", "agentrl sft")
    from agentrl.trainer.sft import fine_tune

    keys = keys if tasks is None else {**keys, "tasks": tasks}
    required = "tasks", "model.path"
    run = run_configuration(keys, config, None, *required, resume=resume, run_dir="runs/sft-%Y-%m-%d-%H%M%S")
    print_json(fine_tune(run, resume=resume is not None))
    return 0


def evaluate(
    workflow: Workflow = None,
    /,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    out: Path | None = None,
    per_task: Flag = False,
    as_json: JsonFlag = False,
    show: ViewFlag = False,
    config: Files = (),
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

    Raises:
        KeyboardInterrupt: It was interrupted before its first episode began.
    """
    from agentrl.cli.evaluation_view import evaluation_view, show_evaluation
    from agentrl.cli.run_tools import shown_on_page
    from agentrl.cli.terminal import print_json, run_until_signal
    from agentrl.evaluation.directory import new_directory
    from agentrl.evaluation.evaluate import evaluate as run_evaluation

    if "tasks" in keys:  # before the held-out ones of a file
        keys = {"eval.tasks": "", "data.eval_share": 0, **keys}
    chosen = configuration(keys, config, workflow, "workflow", "tasks", "model.path")
    key = api_key or os.environ.get("OPENAI_API_KEY", "-")
    out = new_directory("evaluation") if show and out is None else out
    with shown_on_page(out if show else None, sys.stderr), evaluation_view() as view:
        try:
            result = run_until_signal(
                lambda: run_evaluation(chosen, base_url=base_url, api_key=key, out=out, view=view)
            )
        except KeyboardInterrupt:
            if view.directory is None:
                raise
            view.say(
                f"interrupted: {view.ended} of {view.total} episodes are in {view.directory}; the same command with "
                f"--out {view.directory} goes on"
            )
            return 130
    if as_json:
        print_json(result.to_json())
    else:
        show_evaluation(result, per_task=per_task)
    return 0 if result.failed < result.episode_count else 1


def serve(
    *,
    admin_key: str | None = None,
    out: Path | None = None,
    show: ViewFlag = False,
    config: Files = (),
    keys: ServeKeys = NO_KEYS,
) -> int:
    """Serve a model and record what agents elsewhere do with it, until Ctrl-C.

    Args:
        admin_key: Key of the session API. Default: $AGENTRL_ADMIN_KEY, or a new one, which is printed.
        out: Directory that keeps each session that ends, with what was said in it. Given again, it goes on there. Default: one in
            `runs/` that is named by the time.
        show: Show it on a page while it goes on; its address is printed.
        config: TOML files of keys.
        keys: The keys that were typed.
    """
    from agentrl.cli.run_tools import shown_on_page
    from agentrl.cli.terminal import until_interrupted
    from agentrl.evaluation.directory import new_directory
    from agentrl.run.serve import serve as run_server

    chosen = configuration(keys, config, None, "model.path")
    out = new_directory("service") if show and out is None else out
    with shown_on_page(out if show else None, sys.stderr):
        return until_interrupted(lambda: run_server(chosen, admin_key, out=out))
