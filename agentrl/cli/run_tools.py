"""The commands that read runs and evaluations: `agentrl view`, `runs`, `episodes`, `audit` and `replay`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from agentrl.cli.options import Flag, JsonFlag

if TYPE_CHECKING:
    from agentrl.run.audit import Audit
    from agentrl.store.read_episode import RunEpisode

RUN_CONFIGS = ("config.json", "*/config.json", "*/*/config.json")
"""Where `agentrl runs` looks below a directory."""
LISTED = 10
"""Episodes that `agentrl episodes` lists from either end."""


def view(run_dirs: list[Path], /, *, act: Flag = False, host: str = "127.0.0.1", port: int = 0) -> int:
    """Show runs and evaluations on a page, while they go on or after, until Ctrl-C. Nothing of them is changed.

    Args:
        run_dirs: Directories of runs or evaluations.
        act: Let the page sample continuations, score tokens and grade again. A run's first continuation starts an engine.
        host: The address that the page is served on. On any but loopback's it needs the token that the printed address has.
        port: Its port. 0: a free one.
    """
    import anyio

    from agentrl.cli.terminal import until_interrupted
    from agentrl.run.open_run import open_run
    from agentrl.viewer.act import open_acts
    from agentrl.viewer.server import serving

    paths = [open_run(path).path for path in run_dirs]

    async def show() -> None:
        async with open_acts() if act else nullcontext() as acts, serving(paths, host, port, acts) as address:
            print(f"the page is at {address} until Ctrl-C", flush=True)
            await anyio.sleep_forever()

    return until_interrupted(show)


@contextmanager
def shown_on_page(directory: Path | str | None, stream: TextIO | None = None) -> Iterator[None]:
    """Show the run of this process on a page for the length of the context, in a thread of its own.

    Args:
        directory: The run's; None: show nothing.
        stream: It gets the address of the page. Default: standard output.
    """
    if directory is None:
        yield
        return
    from agentrl.viewer.server import serving_in_thread

    with serving_in_thread([Path(directory)]) as address:
        print(f"the page is at {address} while this goes on", file=stream, flush=True)
        yield


def runs(directory: Path = Path(), /) -> int:
    """List the runs and evaluations in a directory, the newest first, with their state and figures.

    Args:
        directory: Where they are looked for, two folders deep.
    """
    from agentrl.cli.terminal import print_table

    found = [path.parent for pattern in RUN_CONFIGS for path in directory.glob(pattern) if _changed(path.parent)]
    if found:
        columns = "run", "state", "step", "reward", "held-out", "changed"
        print_table(columns, map(_run_row, sorted(found, key=_changed, reverse=True)))
    else:
        print(f"no runs in {directory.absolute()}; name the directory that holds them: agentrl runs DIRECTORY")
    return 0


def _run_row(path: Path) -> list[str]:
    from agentrl.errors import AgentRLError, one_line
    from agentrl.viewer.queries import ShownRun

    try:
        figures = ShownRun(path).figures()
        shown = [figures[key] for key in ("state", "step", "reward", "held_out")]
    except (AgentRLError, OSError, ValueError) as error:
        shown = [one_line(str(error).replace(f"{path}/", ""), 60), "", "", ""]
    return [str(path), *shown, time.strftime("%Y-%m-%d %H:%M", time.localtime(_changed(path)))]


def _changed(run_dir: Path) -> float:
    """Return when the newest of a run's files was written; 0: it is no run."""
    files = [run_dir / name for name in ("metrics.jsonl", "store.sqlite", "store.sqlite-wal")]
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def episodes(run_dir: Path, episode: int | None = None, /) -> int:
    """List the worst and the best episodes of a run or an evaluation, or print what was said in one.

    Args:
        run_dir: Directory of the run or evaluation.
        episode: Id of the episode whose transcript is printed.
    """
    from agentrl.cli.terminal import print_table
    from agentrl.evaluation.directory import untrained_kind
    from agentrl.run.open_run import open_run
    from agentrl.system.exit_code import as_typed_here

    run = open_run(run_dir)
    if episode is not None:
        print(run.episode(episode).transcript())
        return 0
    worst, best = (run.listed({}, limit=LISTED, order=order) for order in ("worst", "best"))
    shown = {one.id: one for one in [*worst, *reversed(best)]}
    sessions = untrained_kind(run_dir) == "service"
    columns = "episode", "task", "reward", "ended", "tokens", "session" if sessions else "metrics"
    print_table(columns, [_episode_row(one, sessions) for one in shown.values()])
    print(as_typed_here(f"the {LISTED} worst and the {LISTED} best; one in full: agentrl episodes {run_dir} EPISODE"))
    return 0


def _episode_row(one: RunEpisode, sessions: bool) -> tuple[object, ...]:
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in one.metrics.items())
    last = one.details["session"]["id"] if sessions else metrics  # a session has no metrics
    return one.id, one.task, f"{one.reward:.4g}", one.reason, f"{one.tokens:,}", last


def audit(run_dir: Path, /, *, as_json: JsonFlag = False) -> int:
    """Prove from a run's store and checkpoints that nothing was lost.

    Args:
        run_dir: Directory of the run.
        as_json: Print everything as JSON.
    """
    from agentrl.cli.terminal import print_json, print_table
    from agentrl.run.audit import audit as run_audit

    found = run_audit(run_dir)
    if as_json:
        print_json(asdict(found))
    else:
        print_table((), _audit_rows(found))
        for violation in found.violations:
            print(f"WRONG: {violation}")
        if not found.violations:
            print("nothing is lost, nothing is doubled")
    return 1 if found.violations else 0


def _audit_rows(found: Audit) -> Iterator[tuple[str, object, str]]:
    """Yield what became of everything in a run."""
    checkpoint, of = "none" if found.last_checkpoint is None else f"of step {found.last_checkpoint}", found.totals
    yield "starts", found.restarts, f"newest checkpoint: {checkpoint}"
    yield "tasks", f"{found.tasks:,}", "handed out, of which"
    yield "", f"{found.trained:,}", f"trained on, in {found.batches:,} batches"
    for reason, count in sorted(found.dropped.items()):
        yield "", f"{count:,}", f"dropped: {reason}"
    yield "", f"{found.waiting:,}", "complete, waiting for a batch or its checkpoint"
    calls = found.logged_calls
    yield "", f"{found.unfinished:,}", f"unfinished, with {calls:,} model call{'s' * (calls != 1)} kept"
    yield "episodes", f"{of.finished:,}", f"finished, and {of.failed:,} failed attempts"
    yield (
        "tokens",
        f"{of.tokens:,}",
        f"generated, {of.replayed_tokens:,} of them reused after a restart instead of generated again",
    )


def replay(run_dir: Path, episode: int, /) -> int:
    """Run one episode again from its record.

    Args:
        run_dir: Directory of the run.
        episode: Its id in the store.
    """
    from agentrl.cli.terminal import run_until_signal
    from agentrl.run.replay import replay as run_replay

    found = run_until_signal(lambda: run_replay(run_dir, episode))
    for number, (prompt, reply) in enumerate(found.conversation, 1):
        print(f"--- call {number}: asked\n{prompt}\n--- call {number}: said\n{reply}")
    for asked in found.unknown:
        print(f"--- asked, and not in the record\n{asked}")
    recorded, outcome = found.recorded, found.outcome
    print(f"--- {len(found.conversation)} of {found.calls_recorded} recorded calls were asked for again")
    print(f"recorded: {recorded.reason}, reward {recorded.reward:g}; now: {outcome.reason}, reward {outcome.reward:g}")
    if outcome.error:
        print(outcome.error)
    return 0 if found.same else 1
