"""Faults inside a run's own processes. Python imports this file at the start of every process whose PYTHONPATH names this folder.

A process that AGENTRL_FAULT_LOG does not name is left alone. Elsewhere, at random: an engine's replies are unsound, an optimizer step runs out
of memory before or after it has moved the weights, and published weights find no room. Each fault is a line of the log. AGENTRL_FAULT_RATE
multiplies how often they come.

No fault, but what a simulated power cut needs to know: where AGENTRL_SYNCED_NOTE names a file, it holds the head of the store's WAL index as
of the last durable transaction.
"""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
import random
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RATE = float(os.environ.get("AGENTRL_FAULT_RATE", "1"))
UNSOUND_REPLIES = 0.01 * RATE
OUT_OF_MEMORY = 0.02 * RATE
NO_ROOM = 0.02 * RATE


def note(fault: str) -> None:
    """Write a line of the log, whole even when many processes write."""
    descriptor = os.open(os.environ["AGENTRL_FAULT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, (fault + "\n").encode())
    os.close(descriptor)


def unsound(reply: dict[str, Any]) -> None:
    """Damage a reply of SGLang's API in one of the ways that an engine may."""
    meta = reply["meta_info"]
    logprobs, spans = meta["output_token_logprobs"], meta.get("weight_versions")
    kind = random.choice(["null logprob", "positive logprob", "unknown id", "missing logprob", "short spans"])
    at = random.randrange(len(logprobs))
    if kind == "null logprob":
        logprobs[at] = [None, *logprobs[at][1:]]
    elif kind == "positive logprob":
        logprobs[at] = [3.0, *logprobs[at][1:]]
    elif kind == "unknown id":
        reply["output_ids"] = [*reply["output_ids"][:at], 10**7, *reply["output_ids"][at + 1 :]]
        logprobs[at] = [logprobs[at][0], 10**7, *logprobs[at][2:]]
    elif kind == "missing logprob":
        del logprobs[at]
    elif spans:
        spans[-1] = {**spans[-1], "end": spans[-1]["end"] - 1}
    note(f"engine: {kind}")


def in_the_engine(module: ModuleType) -> None:
    """Let the server's replies pass through `unsound` now and then."""
    to_json = module.to_json

    def damaged(content: Any, **settings: Any) -> Any:
        is_reply = isinstance(content, dict) and content.get("meta_info", {}).get("output_token_logprobs")
        if is_reply and random.random() < UNSOUND_REPLIES:
            content = {**content, "meta_info": dict(content["meta_info"])}
            for column in ("output_token_logprobs", "weight_versions"):
                content["meta_info"][column] = list(content["meta_info"].get(column) or [])
            unsound(content)
        return to_json(content, **settings)

    module.to_json = damaged  # type: ignore[attr-defined]


def in_the_optimizer(module: ModuleType) -> None:
    """Let optimizer steps run out of memory."""
    step = module.AdamW.step

    def failing(self: Any, *args: Any, **settings: Any) -> Any:
        import torch

        chance = random.random()
        if chance < OUT_OF_MEMORY / 2:
            note("trainer: out of memory before an optimizer step")
            raise torch.OutOfMemoryError("injected before an optimizer step")
        result = step(self, *args, **settings)
        if chance > 1 - OUT_OF_MEMORY / 2:
            note("trainer: out of memory after an optimizer step")
            raise torch.OutOfMemoryError("injected after an optimizer step")
        return result

    module.AdamW.step = failing  # type: ignore[attr-defined]


def in_publishing(module: ModuleType) -> None:
    """Let files of tensors find no room, half written."""
    save_file = module.save_file

    def full(tensors: Any, filename: Any, *args: Any, **settings: Any) -> None:
        save_file(tensors, filename, *args, **settings)
        if random.random() < NO_ROOM:
            os.truncate(filename, os.path.getsize(filename) // 2)
            note("trainer: no space left for weights")
            raise OSError(errno.ENOSPC, "No space left on device", str(filename))

    module.save_file = full  # type: ignore[attr-defined]


def in_the_store(module: ModuleType) -> None:
    """Note how much of the write-ahead log SQLite has synced: all that a transaction under `synchronous = FULL` found there, and wrote."""

    class Noting(module.Connection):  # type: ignore[name-defined, misc]
        index: int | None = None

        def head(self) -> bytes:
            """The first copy of the index's head. The descriptor stays open: to close it would take away SQLite's own locks of the file."""
            if self.index is None:
                self.index = os.open(self.execute("PRAGMA database_list").fetchone()[2] + "-shm", os.O_RDONLY)
            return os.pread(self.index, 48, 0)

        def __exit__(self, *error: Any) -> Any:
            full = self.in_transaction and self.execute("PRAGMA synchronous").fetchone()[0] >= 2
            before = self.head() if full else b""
            result = super().__exit__(*error)
            if full and error[0] is None and self.head() != before:  # where nothing was written, nothing was synced
                descriptor = os.open(os.environ["AGENTRL_SYNCED_NOTE"], os.O_WRONLY | os.O_CREAT, 0o600)
                os.pwrite(descriptor, self.head(), 0)
                os.close(descriptor)
            return result

    module.connect = functools.partial(module.connect, factory=Noting)  # type: ignore[attr-defined]


class After(MetaPathFinder):
    """Change some modules when they have been imported."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if (change := self._changes.pop(fullname, None)) is None:
            return None
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        loader: Loader = spec.loader
        execute = loader.exec_module

        def changed(module: ModuleType) -> None:
            execute(module)
            change(module)

        loader.exec_module = changed  # type: ignore[method-assign]
        return spec


if "AGENTRL_FAULT_LOG" in os.environ:
    words = " ".join(sys.orig_argv)
    if "agentrl.engine" in words:
        sys.meta_path.insert(0, After({"pydantic_core": in_the_engine}))
    elif "agentrl.trainer" in words:
        sys.meta_path.insert(0, After({"torch.optim.adamw": in_the_optimizer, "safetensors.torch": in_publishing}))

if "AGENTRL_SYNCED_NOTE" in os.environ:
    sys.meta_path.insert(0, After({"sqlite3": in_the_store}))
