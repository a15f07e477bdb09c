"""Running git in a folder of this machine, bounded in time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

TIMEOUT_S = 120.0
NO_GIT = "git is not installed on this machine, or not on its PATH; install it"


def run_git(folder: Path, *command: str, stdin: str = "", **variables: str) -> bytes:
    """Return what a command of git prints.

    The repository is that of `folder`, or what `variables` name: GIT_DIR and its like of this process, which a hook of git's has, decide
    nothing, and neither does a repository that `folder` is in without being one.

    Args:
        folder: Where it runs.
        command: Its words.
        stdin: What it reads.
        variables: Further variables of its environment.

    Raises:
        OSError: git cannot be run, takes too long or fails; the message is what it said.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    words = ["git", "-C", str(folder), *command]
    env = {**own, "GIT_CEILING_DIRECTORIES": str(folder.parent), **variables}
    try:
        done = subprocess.run(words, input=stdin.encode(), capture_output=True, env=env, timeout=TIMEOUT_S, check=False)  # noqa: S603
    except FileNotFoundError as error:
        raise OSError(NO_GIT) from error
    except subprocess.TimeoutExpired as error:
        raise OSError(f"git {command[0]} took more than {TIMEOUT_S:g} s") from error
    except ValueError as error:  # a NUL, or half of a character, which JSON can say
        raise OSError(f"git takes no such text: {error}") from error
    if done.returncode:
        raise OSError(done.stderr.decode(errors="replace").strip() or f"git {command[0]} failed")
    return done.stdout
