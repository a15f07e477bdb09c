"""The commands that read runs and evaluations: `agentrl view`, `runs`, `episodes`, `audit` and `replay`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from agentrl.cli.options import Flag, JsonFlag

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
def shown_beside(directory: Path | str | None, stream: TextIO | None = None) -> Iterator[None]:
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
    from rich.markup import escape
    from rich.table import Table

    from agentrl.cli.terminal import table_console
    from agentrl.errors import AgentRLError, one_line
    from agentrl.viewer.queries import ShownRun

    found = [path.parent for pattern in RUN_CONFIGS for path in directory.glob(pattern) if _changed(path.parent)]
    table = Table("run", "state", "step", "reward", "held-out", "changed", box=None, pad_edge=False)
    for path in sorted(found, key=_changed, reverse=True):
        name, when = escape(str(path)), time.strftime("%Y-%m-%d %H:%M", time.localtime(_changed(path)))
        try:
            figures = ShownRun(path).figures()
            table.add_row(name, *(figures[key] for key in ("state", "step", "reward", "held_out")), when)
        except (AgentRLError, OSError, ValueError) as error:
            table.add_row(name, escape(one_line(str(error).replace(f"{path}/", ""), 60)), "", "", "", when)
    if found:
        table_console().print(table, highlight=False)
    else:
        print(f"no runs in {directory.absolute()}; name the directory that holds them: agentrl runs DIRECTORY")
    return 0


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
    from rich.markup import escape
    from rich.table import Table

    from agentrl.cli.terminal import table_console
    from agentrl.run.open_run import open_run
    from agentrl.system.exit_code import as_typed_here

    run = open_run(run_dir)
    if episode is not None:
        print(run.episode(episode).transcript())
        return 0
    worst, best = (run.listed({}, limit=LISTED, order=order) for order in ("worst", "best"))
    shown = {one.id for one in worst}
    table = Table("episode", "task", "reward", "ended", "tokens", "metrics", box=None, pad_edge=False)
    for one in [*worst, *(one for one in reversed(best) if one.id not in shown)]:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in one.metrics.items())
        table.add_row(str(one.id), str(one.task), f"{one.reward:.4g}", one.reason, f"{one.tokens:,}", escape(metrics))
    table_console().print(table, highlight=False)
    print(
        as_typed_here(
            f"the {LISTED} worst and the {LISTED} best; one of them in full: agentrl episodes {run_dir} EPISODE"
        )
    )
    return 0


def audit(run_dir: Path, /, *, as_json: JsonFlag = False) -> int:
    """Prove from a run's store and checkpoints that nothing was lost.

    Args:
        run_dir: Directory of the run.
        as_json: Print everything as JSON.
    """
    from agentrl.cli.terminal import print_json, show_audit
    from agentrl.run.audit import audit as run_audit

    found = run_audit(run_dir)
    if as_json:
        print_json(asdict(found))
    else:
        show_audit(found)
    return 1 if found.violations else 0


def replay(run_dir: Path, episode: int, /) -> int:
    """Run one episode again from its record.

    Args:
        run_dir: Directory of the run.
        episode: Its id in the store.
    """
    from agentrl.cli.terminal import run_until_signal, show_replay
    from agentrl.run.replay import replay as run_replay

    found = run_until_signal(lambda: run_replay(run_dir, episode))
    show_replay(found)
    return 0 if found.same else 1
