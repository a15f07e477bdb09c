"""`agentrl replay`: one episode again, from its record."""

from __future__ import annotations

from pathlib import Path


def replay(run_dir: Path, episode: int, /) -> int:
    """Run one episode again from its record.

    Args:
        run_dir: Directory of the run.
        episode: Its id in the store.
    """
    from agentrl.cli.foreground import run_until_signal
    from agentrl.cli.terminal import show_replay
    from agentrl.run.replay import replay as run_replay

    found = run_until_signal(lambda: run_replay(run_dir, episode))
    show_replay(found)
    return 0 if found.same else 1
