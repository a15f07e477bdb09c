"""The command line: `agentrl train`, `sft`, `eval`, `serve`, `audit`, `replay`, `vet`, `init`, `doctor`.

Every configuration key is an option under its dotted name, `--rollout.batch_size 64` or `--rollout.batch_size=64`.
Exit codes: 0 done, 1 the run failed, 2 bad input, 130 interrupted, 141 nobody reads the output (`agentrl.cli.exit_code`).
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn, TypeVar

import anyio

import agentrl
from agentrl.cli.exit_code import exit_code_of, leaves
from agentrl.concurrency.event_loop import end_process, first_signal, run_loop
from agentrl.config import RunConfig, check_set, close_key, config_keys, load_config
from agentrl.errors import ConfigError, SandboxError, UsageError
from agentrl.run.run_directory import read_config, with_run_dir

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # no character that a terminal lacks ends a run
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or bool(os.environ.get("AGENTRL_DEBUG"))
    return exit_code_of(lambda: _run([word for word in words if word != "--debug"]), debug=debug)


def _run(words: Sequence[str]) -> int:
    parser = _parser()
    words, overrides = _split_overrides(words, parser)
    args = parser.parse_args(words)
    code: int = args.command(args, overrides)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise UsageError, in place of printing all options."""
        raise UsageError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="agentrl",
        description="Reinforcement learning of language-model agents.",
        epilog="--debug, or AGENTRL_DEBUG=1, shows the traceback of an error.",
    )
    parser.add_argument("--version", action="version", version=f"agentrl {agentrl.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    keys = "configuration keys, each an option: " + ", ".join(config_keys())

    train = commands.add_parser("train", help="train a model on a workflow", epilog=keys, allow_abbrev=False)
    train.add_argument("workflow", nargs="?", help="Python file with `async def run(episode)`")
    train.add_argument("--resume", type=Path, metavar="RUN_DIR", help="go on with the run in this directory")
    train.set_defaults(command=_train)

    sft = commands.add_parser(
        "sft", help="train a model on conversations, before or without rewards", epilog=keys, allow_abbrev=False
    )
    sft.add_argument("--resume", type=Path, metavar="RUN_DIR", help="go on with the run in this directory")
    sft.set_defaults(command=_sft, workflow=None)

    evaluate = commands.add_parser(
        "eval", help="run a workflow over tasks, without training", epilog=keys, allow_abbrev=False
    )
    evaluate.add_argument("workflow", help="Python file with `async def run(episode)`")
    evaluate.add_argument("--base-url", help="an OpenAI-compatible endpoint; none given: the model is served here")
    evaluate.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "-"), help="default: $OPENAI_API_KEY")
    evaluate.add_argument(
        "--out", type=Path, help="keep one JSON line an episode in this file; given again, the evaluation goes on"
    )
    evaluate.add_argument("--json", action="store_true", help="print everything as JSON, and no table")
    evaluate.set_defaults(command=_evaluate)

    serve = commands.add_parser(
        "serve", help="serve a model and record what agents elsewhere do with it", epilog=keys, allow_abbrev=False
    )
    serve.add_argument("--admin-key", help="key of the session API; default: $AGENTRL_ADMIN_KEY, or a new one")
    serve.set_defaults(command=_serve, workflow=None)

    audit = commands.add_parser("audit", help="prove from a run's store that nothing was lost", allow_abbrev=False)
    audit.add_argument("run_dir", type=Path, metavar="RUN")
    audit.add_argument("--json", action="store_true", help="print everything as JSON")
    audit.add_argument(
        "--retrain",
        action="store_true",
        help="train the recorded batches from scratch, and compare the weights of every step",
    )
    audit.set_defaults(command=_audit)

    replay = commands.add_parser("replay", help="run one episode again from its record", allow_abbrev=False)
    replay.add_argument("run_dir", type=Path, metavar="RUN")
    replay.add_argument("episode", type=int, help="its id in the store")
    replay.set_defaults(command=_replay)

    vet = commands.add_parser(
        "vet",
        help="find the tasks of a code task set that cannot be solved, or are rewarded for nothing",
        epilog="Exit code 0: every task is kept; 1: some are refused; 2: bad input. Keys of the section sandbox are options too.",
        allow_abbrev=False,
    )
    vet.add_argument("tasks", metavar="TASKS", help="file of JSON lines (.gz too), hf:DATASET, or python:FILE:NAME")
    vet.add_argument("--output", type=Path, metavar="FILE", help="write the tasks that are kept to this file")
    vet.add_argument(
        "--report", type=Path, metavar="FILE", help="write what is wrong with each other task to this file"
    )
    vet.add_argument("--limit", type=int, metavar="N", help="examine the first N tasks alone")
    vet.add_argument("--runs", type=int, default=5, help="how often each reference is run, to see if it always passes")
    vet.add_argument("--timeout-s", type=float, help="CPU seconds of a test that has no limits of its own")
    vet.add_argument("--json", action="store_true", help="print the report as JSON, and no table")
    vet.add_argument("--config", type=Path, action="append", default=[], help="TOML file, for its section sandbox")
    vet.set_defaults(command=_vet)

    doctor = commands.add_parser("doctor", help="tell what works on this machine", allow_abbrev=False)
    doctor.add_argument("--limits", action="store_true", help="try every limit of every sandbox backend")
    doctor.set_defaults(command=_doctor)

    for command in (train, sft, evaluate, serve):
        command.add_argument(
            "--config", type=Path, action="append", default=[], help="TOML file; of several, later ones win"
        )
        command.add_argument("--engine", choices=["embedded", "sglang"], help="servers to start (engine.kind)")
        if command is not serve:
            command.add_argument("--tasks", help="file of JSON lines, hf:DATASET, or python:FILE:NAME")
        command.add_argument(
            "--model",
            help="directory of a Hugging Face checkpoint, a model of the hub (Qwen/Qwen3-0.6B), or nano (model.path)",
        )

    init = commands.add_parser(
        "init", help="write a new workflow, environment and test to start from", allow_abbrev=False
    )
    init.add_argument("name", help="the folder to make")
    init.set_defaults(command=_init)
    return parser


def _split_overrides(words: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], dict[str, str]]:
    """Part the configuration keys from the options of the commands themselves."""
    own = dict(_own_options(parser))
    rest: list[str] = []
    overrides: dict[str, str] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        if not name.startswith("--") or name in own:
            rest.append(word)
            if own.get(name) and not equals and queue:
                rest.append(queue.pop(0))
            continue
        key = name.removeprefix("--")
        if key.partition(".")[0] not in RunConfig.model_fields:
            meant = close_key(key.replace("-", "_")) or next(iter(difflib.get_close_matches(name, own, 1, 0.75)), None)
            raise ConfigError(
                f"unknown option {name}" + (f"; did you mean --{meant.removeprefix('--')}?" if meant else "")
            )
        if not equals:
            if not queue:
                raise ConfigError(f"{name} needs a value")
            value = queue.pop(0)
        overrides[key] = value
    return rest, overrides


def _own_options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, bool]]:
    """Each option of a parser and of its commands' parsers, and whether it takes a value."""
    for action in parser._actions:
        for option in action.option_strings:
            yield option, action.nargs != 0
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _own_options(command)


def _config(args: argparse.Namespace, overrides: dict[str, str]) -> RunConfig:
    if args.model:
        overrides = {"model.path": json.dumps(args.model), **overrides}
    if args.engine:
        overrides = {"engine.kind": json.dumps(args.engine), **overrides}
    return load_config(args.config, overrides, workflow=args.workflow, tasks=getattr(args, "tasks", None))


def _train(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from agentrl.cli.terminal import terminal_view
    from agentrl.run.train import train

    config = _run_config(args, overrides, "runs/%Y-%m-%d-%H%M%S", "workflow", "tasks", "model.path")
    with terminal_view(config) as view:
        run = run_loop(lambda: train(config, resume=args.resume is not None, view=view))
    if run.status == "stopped":
        print(f"interrupted at step {view.step}; go on with: agentrl train --resume {config.run_dir}")
        return 130
    print(json.dumps(run.summary, indent=2))
    return 0


def _sft(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from agentrl.trainer.sft import fine_tune

    config = _run_config(args, overrides, "runs/sft-%Y-%m-%d-%H%M%S", "tasks", "model.path")
    print(json.dumps(fine_tune(config, resume=args.resume is not None), indent=2))
    return 0


def _run_config(args: argparse.Namespace, overrides: dict[str, str], run_dir: str, *required: str) -> RunConfig:
    """The configuration of a new run, in a directory that is named by the time if by nothing else, or of the one resumed."""
    if args.resume is None:
        config = _config(args, overrides)
        check_set(config, *required)
        return with_run_dir(config, run_dir)
    if args.workflow or args.config or args.tasks or args.model or args.engine:
        raise ConfigError("--resume takes the configuration of the run; change single keys with --section.key VALUE")
    return read_config(args.resume, overrides)


def _evaluate(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from agentrl.cli.evaluation_command import run_evaluation

    config = _config(args, overrides)
    check_set(config, "workflow", "tasks", "model.path")
    return run_loop(
        lambda: _until_signal(
            lambda: run_evaluation(
                config, base_url=args.base_url, api_key=args.api_key, out=args.out, as_json=args.json
            )
        )
    )


async def _until_signal(main: Callable[[], Awaitable[T]]) -> T:
    """Run `main()`. The first SIGINT or SIGTERM ends it in order, as KeyboardInterrupt."""
    with anyio.CancelScope() as scope, first_signal(scope.cancel):
        return await main()
    raise KeyboardInterrupt


def _serve(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    config = _config(args, overrides)
    check_set(config, "model.path")
    from agentrl.run.serve import print_address, serve  # before the loop, which a long import would block

    served: list[str] = []

    def announce(model: str, url: str) -> None:
        served.append(url)
        print_address(model, url)

    try:
        run_loop(lambda: _until_signal(lambda: serve(config, args.admin_key, announce)))
    except KeyboardInterrupt:
        if not served:
            raise
    return 0


def _doctor(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from rich.console import Console

    from agentrl.cli.doctor import examine

    if overrides:
        raise ConfigError(f"doctor takes no --{next(iter(overrides))}")
    return 0 if anyio.run(lambda: examine(Console(), limits=args.limits)) else 1


def _audit(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from agentrl.cli.terminal import show_audit
    from agentrl.run.audit import audit

    if overrides:
        raise ConfigError(f"audit takes no --{next(iter(overrides))}")
    found = audit(args.run_dir)
    retrained = None
    if args.retrain and not found.violations:
        from agentrl.run.retrain import retrain

        retrained = anyio.run(retrain, args.run_dir)
    if args.json:
        print(json.dumps(asdict(found) | {"retrained": retrained and asdict(retrained)}, indent=2))
    else:
        show_audit(found, retrained)
    return 1 if found.violations or (retrained and retrained.wrong) else 0


def _replay(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from agentrl.cli.terminal import show_replay
    from agentrl.run.replay import replay

    if overrides:
        raise ConfigError(f"replay takes no --{next(iter(overrides))}")
    found = run_loop(lambda: _until_signal(lambda: replay(args.run_dir, args.episode)))
    show_replay(found)
    return 0 if found.same else 1


def _vet(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from agentrl.cli.vet_command import check_files, finish_vetting, run_vetting
    from agentrl.rollout.tasks import finite_tasks

    if strange := next((key for key in overrides if key.partition(".")[0] != "sandbox"), None):
        raise ConfigError(f"vet takes no --{strange}")
    for name in ("limit", "runs", "timeout_s"):
        if (number := getattr(args, name)) is not None and not number > 0:
            raise ConfigError(f"--{name.replace('_', '-')} {number:g} must be more than 0")
    config = load_config(args.config, overrides)
    check_files(args.tasks, args.output, args.report)
    tasks = finite_tasks(args.tasks, args.limit)
    try:
        reports = run_loop(
            lambda: _until_signal(lambda: run_vetting(config, tasks, timeout_s=args.timeout_s, runs=args.runs))
        )
    except* SandboxError as failed:  # an exit code of 1 says that tasks are refused
        raise UsageError(f"nothing can be vetted: {next(leaves(failed))}") from failed
    return finish_vetting(tasks, reports, output=args.output, report=args.report, as_json=args.json)


def _init(args: argparse.Namespace, overrides: dict[str, str]) -> int:
    from agentrl.cli.init import write_project

    if overrides:
        raise ConfigError(f"init takes no --{next(iter(overrides))}")
    for path in write_project(Path(args.name)):
        print(path)
    print(f"Next: cd {shlex.quote(args.name)} && agentrl train --config run.toml")
    return 0


if __name__ == "__main__":
    end_process(main())
