"""The episodes of an evaluation in a file, so that one that was interrupted goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError, one_line
from agentrl.evaluation.figures import EvaluatedEpisode


class EvaluationLog:
    """The episodes of an evaluation in a file of JSON lines, so that one that was interrupted goes on.

    The first line says what is evaluated: `identity`. Raises ConfigError when the file holds something else. Use it as
    a context manager; `done` are the episodes that it held, without the failed ones, which are run again.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        header = json.dumps({"evaluation": dict(identity)})
        self._lock = threading.Lock()
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            if lines and lines[0].rstrip(b"\n") != header.encode():
                raise ConfigError(
                    f"--out {path} holds something else than this evaluation; name another file, or remove it"
                )
            self.done, whole = _done(lines[1:])
            self._file = path.open("r+" if lines else "w")
            if lines:
                self._file.truncate(len(lines[0]) + whole)
                self._file.seek(len(lines[0]) + whole)
            else:
                self._file.write(header + "\n")
                self._file.flush()
        except OSError as error:
            raise ConfigError(f"--out {path} cannot be written: {error.strerror}; name another file") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"--out {path} holds a line that is no episode: {one_line(error)}; name another file, or remove it"
            ) from error

    def add(self, episode: EvaluatedEpisode) -> None:
        """Write one episode. May be called in several threads."""
        with self._lock:
            self._file.write(json.dumps(vars(episode)) + "\n")
            self._file.flush()

    def __enter__(self) -> EvaluationLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _done(lines: Sequence[bytes]) -> tuple[list[EvaluatedEpisode], int]:
    """The finished episodes of a log, and the bytes of its whole lines."""
    done, whole = [], 0
    for line in lines:
        if not line.endswith(b"\n"):
            break  # torn by a crash
        episode = EvaluatedEpisode(**json.loads(line))
        whole += len(line)
        if episode.status == "finished":
            done.append(episode)
    return done, whole
