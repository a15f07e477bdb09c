"""What a task folder says in `task.toml`, checked: numbers that a sandbox can have, folders that it can give, nothing that it has not.

A limit is the most that programs may use. Cores beyond those of the machine are no fault, memory beyond it is: a program that takes it
takes the machine with it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from agentrl.machine.sandbox_bounds import (
    CPUS,
    LONGEST_S,
    MEMORY_MB,
    check_image_name,
    check_writable,
    memory_of_this_machine_mb,
)

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([TGMK])B?", re.IGNORECASE)
_MB = {"T": 2.0**20, "G": 1024.0, "M": 1.0, "K": 1 / 1024}


class _Section(BaseModel):
    """A table of `task.toml`. Harbor ignores what it does not know, and so do we."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def _megabytes(given: Any) -> Any:
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    size = float(found[1]) * _MB[found[2].upper()] if found else math.inf
    return int(size) if math.isfinite(size) else given


def _of_this_machine(megabytes: int) -> int:
    there = memory_of_this_machine_mb()
    if megabytes > there and engine_is_here():
        raise ValueError(
            f"{megabytes} MB are more than the {there} MB of this machine; lower it, or name an engine with more in DOCKER_HOST"
        )
    return megabytes


@cache
def _context_of_the_user() -> str:
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    try:
        return str(json.loads(Path(folder, "config.json").read_text())["currentContext"])
    except (OSError, ValueError, KeyError, TypeError):
        return "default"


def engine_is_here() -> bool:
    """Return whether the Docker engine that would run sandboxes is on this machine, as far as the environment says."""
    if address := os.environ.get("DOCKER_HOST"):
        return address.startswith("unix:")
    return (os.environ.get("DOCKER_CONTEXT") or _context_of_the_user()) == "default"


Disk = Annotated[int, BeforeValidator(_megabytes), Field(gt=0)]
Megabytes = Annotated[int, BeforeValidator(_megabytes), Field(ge=MEMORY_MB[0], le=MEMORY_MB[1])]
Memory = Annotated[Megabytes, AfterValidator(_of_this_machine)]
Cpus = Annotated[float, Field(ge=CPUS[0], le=CPUS[1])]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
ImageName = Annotated[str, AfterValidator(check_image_name)]


def _absolute(path: str) -> str:
    if not path.startswith("/") or path.startswith("//") or os.path.normpath(path) != path or not path.isprintable():
        raise ValueError(
            f"{path!r} must be an absolute path without '.', '..', '//', a final '/' and control characters"
        )
    return path


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class Environment(_Section):
    """`[environment]`: what the agent works in."""

    build_timeout_sec: Seconds = 600.0
    docker_image: ImageName | None = None
    workdir: AbsolutePath | None = None
    """None: the WORKDIR of the image."""
    cpus: Cpus = 1.0
    memory_mb: Memory = 2048
    storage_mb: Disk = 10240
    env: dict[str, str] = Field(default_factory=dict)
    service_env: dict[str, str] = Field(default_factory=dict)
    """No field of `task.toml`: the variables that a compose file gives its service, filled in. Those of `env` go before them."""
    os: str = "linux"
    allow_internet: bool | None = None
    """Harbor's; a task's `network` decides here."""
    gpus: int = 0
    tpu: Any = None
    mcp_servers: list[Any] = Field(default_factory=list)
    healthcheck: Any = None

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_schemas(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        named = {"memory": "memory_mb", "storage": "storage_mb"}
        present = {name: value for name, value in given.items() if value is not None and name not in named}
        return {**{new: given[old] for old, new in named.items() if given.get(old) is not None}, **present}

    @model_validator(mode="after")
    def _can_be_had(self) -> Environment:
        wanted = {
            "os": self.os.lower() != "linux",
            "gpus": self.gpus > 0,
            "tpu": self.tpu is not None,
            "mcp_servers": bool(self.mcp_servers),
            "healthcheck": self.healthcheck is not None,
        }
        if missing := [name for name, is_wanted in wanted.items() if is_wanted]:
            raise ValueError(
                f"{', '.join(missing)} cannot be had in a sandbox, which runs the image alone, on Linux; leave the task out"
            )
        return self


class Phase(_Section):
    """`[agent]`; `[verifier]` has the same fields."""

    timeout_sec: Seconds = 600.0
    env: dict[str, str] = Field(default_factory=dict)


class Verifier(Phase):
    """`[verifier]`."""

    environment: Any = None

    @model_validator(mode="after")
    def _in_the_same_image(self) -> Verifier:
        if self.environment is not None:
            raise ValueError(
                "an image of the verifier's own ([verifier.environment]) is not built; it runs in a new sandbox of the task's image, "
                "so put what it needs there"
            )
        return self


class Solution(_Section):
    """`[solution]`."""

    env: dict[str, str] = Field(default_factory=dict)


class SandboxSettings(_Section):
    """`[metadata.agentrl]`: what Harbor's form has no field for."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    writable: tuple[AbsolutePath, ...] = ()
    """Folders that the agent may write to, beside the working folder. Their files are what the verifier sees of its work."""
    keep: tuple[str, ...] = ()
    """Names of files that steer tests (`agentrl.workflows.hidden_tests.STEERING`) and are the agent's to write in this task."""


class Metadata(_Section):
    """`[metadata]`, of which agentrl's table alone counts."""

    agentrl: SandboxSettings = SandboxSettings()


class TaskSettings(_Section):
    """`task.toml`."""

    environment: Environment = Environment()
    agent: Phase = Phase()
    verifier: Verifier = Verifier()
    solution: Solution = Solution()
    metadata: Metadata = Metadata()
    steps: list[Any] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_step(self) -> TaskSettings:
        if self.steps:
            raise ValueError("a task of several steps ([[steps]]) is not run; make each step a task of its own")
        return self

    @property
    def disk_mb(self) -> int:
        """How much the agent may write. Files are in memory."""
        return min(self.environment.storage_mb, self.environment.memory_mb)

    def check_folders(self, workdir: str | None) -> None:
        """Check the folders that the agent may write to.

        Args:
            workdir: The folder that the image's programs start in, as far as it is known.

        Raises:
            ValueError: One cannot be its own; the message says which, and what to do.
        """
        known = self.environment.workdir or workdir
        check_writable([*self.metadata.agentrl.writable, *([known] if known else [])])
