"""`agentrl serve`: a model and its session API, for agents that run elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.configuration import configuration
from agentrl.cli.options import NO_FILES, NO_KEYS, Files, ServeKeys, ViewFlag


def serve(
    *,
    admin_key: Annotated[str | None, Parameter(negative=())] = None,
    out: Annotated[Path | None, Parameter(negative=())] = None,
    show: ViewFlag = False,
    config: Files = NO_FILES,
    keys: ServeKeys = NO_KEYS,
) -> int:
    """Serve a model and record what agents elsewhere do with it.

    Args:
        admin_key: Key of the session API. Default: $AGENTRL_ADMIN_KEY, or a new one, which is printed.
        out: Directory that keeps each session that ends, with what was said in it. Given again, it goes on there. Default: one in
            `runs/` that is named by the time.
        show: Show it on a page while it goes on; its address is printed.
        config: TOML files of keys.
        keys: The keys that were typed.

    Raises:
        KeyboardInterrupt: It was interrupted before it served anything.
    """
    from agentrl.cli.foreground import run_until_signal
    from agentrl.cli.view import shown_beside
    from agentrl.evaluation.directory import new_directory
    from agentrl.run.serve import NAMED_BY_TIME, print_address
    from agentrl.run.serve import serve as run_server

    chosen = configuration(keys, config, None, "model.path")
    served: list[str] = []

    def announce(model: str, url: str) -> None:
        served.append(url)
        print_address(model, url)

    out = new_directory(NAMED_BY_TIME, "service") if show and out is None else out
    try:
        with shown_beside(out if show else None, sys.stderr):
            run_until_signal(lambda: run_server(chosen, admin_key, announce, out))
    except KeyboardInterrupt:
        if not served:
            raise
    return 0
