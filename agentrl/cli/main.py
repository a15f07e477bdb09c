"""The command line. A command is a function of a module in this folder, imported when it is asked for.

Every configuration key is an option under its dotted name, `--rollout.batch-size 64` or `--rollout.batch_size=64`.
Exit codes: 0 done, 1 the run failed, 2 bad input, 130 interrupted, 141 nobody reads the output (`agentrl.system.exit_code`).
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter

import agentrl
from agentrl.errors import UsageError, one_line
from agentrl.system.exit_code import exit_code_of

COMMANDS = {
    "train": ("agentrl.cli.train_eval:train", "Train a model on a workflow."),
    "sft": ("agentrl.cli.train_eval:sft", "Train a model on conversations, before or without rewards."),
    "eval": ("agentrl.cli.train_eval:evaluate", "Run a workflow over tasks, without training."),
    "serve": ("agentrl.cli.train_eval:serve", "Serve a model and record what agents elsewhere do with it."),
    "view": ("agentrl.cli.run_tools:view", "Show runs on a page: curves, episodes, every token."),
    "runs": ("agentrl.cli.run_tools:runs", "List runs and evaluations with their state and figures."),
    "episodes": ("agentrl.cli.run_tools:episodes", "List the worst and the best episodes, or print one's transcript."),
    "audit": ("agentrl.cli.run_tools:audit", "Prove from a run's store that nothing was lost."),
    "replay": ("agentrl.cli.run_tools:replay", "Run one episode again from its record."),
    "vet": (
        "agentrl.cli.vet:vet",
        "Find the tasks of a code task set that cannot be solved, or are rewarded for nothing.",
    ),
    "config": ("agentrl.cli.configuration:config", "Print the configuration that a command would have."),
    "init": ("agentrl.cli.setup:init", "Write a new workflow, environment, task set and test to start from."),
    "doctor": ("agentrl.cli.setup:doctor", "Tell what works on this machine, and the command for what is missing."),
}
"""A command -> the function that it is, and its line in `agentrl --help`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no character that a terminal lacks ends a run
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or bool(os.environ.get("AGENTRL_DEBUG"))
    return exit_code_of(lambda: _run([word for word in words if word != "--debug"]), debug=debug)


def command_line() -> App:
    """Return the commands and their options. No command is imported before one is chosen."""
    app = App(
        name="agentrl",
        help="Reinforcement learning of language-model agents.",
        help_epilogue="--debug, or AGENTRL_DEBUG=1, shows the traceback of an error.",
        version=f"agentrl {agentrl.__version__}",
        group_parameters=Group.create_ordered("Options"),  # before the sections, whose groups are made later
        default_parameter=Parameter(allow_repeating=True, negative=()),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for place, (name, (function, line)) in enumerate(COMMANDS.items()):
        app.command(function, name=name, help=line, sort_key=place)
    app.register_install_completion_command(help="Install the completion of commands and options into your shell.")
    return app


def _run(words: Sequence[str]) -> int:
    if any(name.startswith("OTEL_") for name in os.environ):
        from agentrl.system.traces import begin_traces  # which imports what only they need

        begin_traces()
    try:
        return command_line()(words, exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        command = " ".join(("agentrl", *(error.command_chain or ())))
        raise UsageError(f"{one_line(error)} See {command} --help.") from None


if __name__ == "__main__":
    from agentrl.system.event_loop import end_process

    end_process(main())
