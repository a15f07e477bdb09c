"""The commands for a new project and a new machine: `agentrl init` and `agentrl doctor`."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as find_version
from importlib.util import find_spec
from pathlib import Path

import agentrl
from agentrl.errors import ConfigError, SandboxError, one_line

TEMPLATE = Path(__file__).parent / "template"


def init(name: str = "my-agent", /) -> int:
    """Write a new workflow, environment, task set and test to start from.

    Args:
        name: The folder to make.

    Raises:
        ConfigError: There is something already, or nothing can be written there.
    """
    from agentrl.system.exit_code import as_typed_here

    directory = Path(name)
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(f"{directory} exists already; choose another name")
        shutil.copytree(TEMPLATE, directory, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {one_line(error)}; choose another place") from error
    for path in sorted(directory.iterdir()):
        print(path)
    print(as_typed_here(f"Next: cd {shlex.quote(name)} && agentrl train --config run.toml"))
    print(f"Its tests: {'' if find_spec('pytest') else 'python -m pip install pytest && '}python -m pytest")
    return 0


def doctor() -> int:
    """Tell what works on this machine, and the command for what is missing. Exit code 1: model-written code cannot be run."""
    import anyio

    from agentrl.sandboxes import Bubblewrap, Docker
    from agentrl.sandboxes.sandbox import SandboxSpec
    from agentrl.system.exit_code import as_typed_here

    for name, found in _machine():
        print(as_typed_here(f"{name:<14} {found}"))
    working: list[str] = []
    for backend in (Docker(), Bubblewrap()):
        try:
            anyio.run(backend.prepare, SandboxSpec())
            working.append(backend.name)
            print(f"{backend.name:<14} works here; its holes: {backend.holes}")
        except SandboxError as error:
            print(as_typed_here(f"{backend.name:<14} {error}"))
    if not working:
        print("no sandboxes: workflows that run model-written code will fail")
        return 1
    print(f"sandbox.backend = auto takes {working[-1]} with the embedded engine, {working[0]} with SGLang")
    return 0


def _machine() -> Iterator[tuple[str, str]]:
    yield "agentrl", f"{agentrl.__version__}, in {Path(agentrl.__file__).parent}"
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield "machine", f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"
    gpus = [path.name for path in Path("/proc/driver/nvidia/gpus").glob("*")]
    yield "GPUs", f"{len(gpus)} from NVIDIA" if gpus else "none from NVIDIA: use `--model nano` or another small model"
    yield "trainer", _version("torch", "transformers", extra="train")
    yield "LoRA", _version("peft", extra="lora")
    if find_spec("sglang"):
        yield "SGLang", _version("sglang")
    else:
        yield "SGLang", "not in this environment: `pip install sglang`, or name another's Python by `engine.python`"
    yield "Ray", _version("ray", extra="cluster")
    yield "environments", _version("reasoning-gym", extra="envs")


def _version(*packages: str, extra: str = "") -> str:
    """Return the versions of packages, or the command that installs the extra which brings them."""
    try:
        return ", ".join(f"{package} {find_version(package)}" for package in packages)
    except PackageNotFoundError as error:
        return f"{error.name} is missing: pip install -e '/path/to/agentrl[{extra}]'"
