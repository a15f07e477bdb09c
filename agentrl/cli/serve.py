"""`agentrl serve`: a model and its session API, for agents that run elsewhere."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.configuration import configuration
from agentrl.cli.options import NO_FILES, NO_KEYS, Files, Keys


def serve(
    *,
    admin_key: Annotated[str | None, Parameter(negative=())] = None,
    config: Files = NO_FILES,
    keys: Keys = NO_KEYS,
) -> int:
    """Serve a model and record what agents elsewhere do with it.

    Args:
        admin_key: Key of the session API. Default: $AGENTRL_ADMIN_KEY, or a new one, which is printed.
        config: TOML files of keys.
        keys: The keys that were typed.

    Raises:
        KeyboardInterrupt: It was interrupted before it served anything.
    """
    from agentrl.cli.foreground import run_until_signal
    from agentrl.run.serve import print_address
    from agentrl.run.serve import serve as run_server

    chosen = configuration(keys, config, None, "model.path")
    served: list[str] = []

    def announce(model: str, url: str) -> None:
        served.append(url)
        print_address(model, url)

    try:
        run_until_signal(lambda: run_server(chosen, admin_key, announce))
    except KeyboardInterrupt:
        if not served:
            raise
    return 0
