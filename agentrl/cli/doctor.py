"""`agentrl doctor`: what of agentrl works on this machine, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

import agentrl
from agentrl.errors import SandboxError


def doctor() -> int:
    """Tell what works on this machine, and what to do about the rest."""
    import anyio

    return 0 if anyio.run(examine, Console()) else 1


async def examine(console: Console) -> bool:
    """Print what is here; return whether model-written code can be run."""
    from agentrl.sandboxes import Bubblewrap, Docker
    from agentrl.sandboxes.sandbox import SandboxSpec

    for name, found in _machine():
        console.print(f"{name:<14} {escape(found)}")
    backends: list[Docker | Bubblewrap] = [Docker(), Bubblewrap()]
    reasons: dict[str, str] = {}
    for backend in backends:
        try:
            await backend.prepare(SandboxSpec())
        except SandboxError as error:
            reasons[backend.name] = str(error)
    working = [backend for backend in backends if backend.name not in reasons]
    console.print()
    for backend in backends:
        console.print(f"{backend.name:<14} {escape(reasons.get(backend.name, 'works here'))}")
    if not working:
        console.print("no sandboxes: workflows that run model-written code will fail")
        return False
    for backend in working:
        console.print(f"holes of {backend.name}: {escape(backend.holes)}")
    names = [backend.name for backend in working]
    console.print(f"sandbox.backend = auto takes {names[-1]} with the embedded engine, {names[0]} with SGLang")
    return True


def _machine() -> Iterator[tuple[str, str]]:
    yield "agentrl", agentrl.__version__
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield "machine", f"{platform.machine()}, {cores} cores, {memory:.0f} GiB"
    gpus = [path.name for path in Path("/proc/driver/nvidia/gpus").glob("*")]
    yield "GPUs", f"{len(gpus)} from NVIDIA" if gpus else "none from NVIDIA"
    yield "trainer", _version("torch", "transformers", extra="train")
    yield (
        "SGLang",
        _version("sglang", extra="")
        if shutil.which("sglang")
        else "not in this environment (engine.python may name another)",
    )
    yield "environments", _version("gymnasium", "reasoning-gym", extra="envs")


def _version(*packages: str, extra: str) -> str:
    found = []
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is missing" + (f": pip install -e '/path/to/agentrl[{extra}]'" if extra else "")
    return ", ".join(found)
