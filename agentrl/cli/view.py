"""`agentrl view`: runs on a page of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

from agentrl.cli.options import Flag


def view(run_dirs: list[Path], /, *, act: Flag = False, host: str = "127.0.0.1", port: int = 0) -> int:
    """Show runs and evaluations on a page, while they go on or after, until Ctrl-C. Nothing of them is changed.

    Args:
        run_dirs: Directories of runs or evaluations.
        act: Let the page sample continuations, score tokens and grade again. A run's first continuation starts an engine.
        host: The address that the page is served on. On any but loopback's it needs the token that the printed address has.
        port: Its port. 0: a free one.
    """
    import anyio

    from agentrl.cli.foreground import run_until_signal
    from agentrl.run.open_run import open_run
    from agentrl.viewer.act import open_acts
    from agentrl.viewer.server import serving

    paths = [open_run(path).path for path in run_dirs]

    async def show() -> None:
        async with open_acts() if act else nullcontext() as acts, serving(paths, host, port, acts) as address:
            print(f"the page is at {address} until Ctrl-C", flush=True)
            await anyio.sleep_forever()

    try:
        run_until_signal(show)
    except KeyboardInterrupt:
        return 0
    return 0


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
