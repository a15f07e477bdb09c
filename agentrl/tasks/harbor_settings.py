"""What a task folder says in `task.toml`, checked: numbers that a container can have, and nothing that it has not.

A limit is the most that programs may use. Cores beyond those of the machine are no fault, memory beyond that of the engine's is: a container
with as much is not started.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([TGMK])B?", re.IGNORECASE)
_MB = {"T": 2.0**20, "G": 1024.0, "M": 1.0, "K": 1 / 1024}


class _Section(BaseModel):
    """A table of `task.toml`. Harbor ignores what it does not know, and so do we."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def _megabytes(given: Any) -> Any:
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    size = float(found[1]) * _MB[found[2].upper()] if found else math.inf
    return int(size) if math.isfinite(size) else given


Disk = Annotated[int, BeforeValidator(_megabytes), Field(gt=0)]
Megabytes = Annotated[int, BeforeValidator(_megabytes), Field(ge=16, le=2**22)]
Cpus = Annotated[float, Field(ge=0.01, le=1024)]
Seconds = Annotated[float, Field(gt=0, le=30 * 24 * 3600)]
ImageName = Annotated[str, Field(min_length=1)]
AbsolutePath = Annotated[str, Field(pattern="^/")]
User = Annotated[str | None, BeforeValidator(lambda given: str(given) if isinstance(given, int) else given)]


class Environment(_Section):
    """`[environment]`: what the agent works in."""

    build_timeout_sec: Seconds = 600.0
    docker_image: ImageName | None = None
    workdir: AbsolutePath | None = None
    """None: the WORKDIR of the image."""
    cpus: Cpus = 1.0
    memory_mb: Megabytes = 2048
    storage_mb: Disk = 10240
    env: dict[str, str] = Field(default_factory=dict)
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
                f"{', '.join(missing)} cannot be had in a container, which runs the image alone, on Linux; leave the task out"
            )
        return self


class Phase(_Section):
    """`[agent]`; `[verifier]` has the same fields."""

    timeout_sec: Seconds = 600.0
    user: User = None
    """None: the image's."""


class Verifier(Phase):
    """`[verifier]`."""

    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    """Of a separate verifier."""

    @property
    def is_separate(self) -> bool:
        """Whether the tests run in an image that the agent has never been in, with the declared artifacts alone."""
        return self.environment_mode == "separate" or (self.environment_mode is None and self.environment is not None)


class Solution(_Section):
    """`[solution]`."""

    env: dict[str, str] = Field(default_factory=dict)


def _source(given: Any) -> Any:
    return given.get("source") if isinstance(given, Mapping) else given


class TaskSettings(_Section):
    """`task.toml`."""

    environment: Environment = Environment()
    agent: Phase = Phase()
    verifier: Verifier = Verifier()
    solution: Solution = Solution()
    artifacts: list[Annotated[AbsolutePath, BeforeValidator(_source)]] = Field(default_factory=list)
    """Paths that a separate verifier is given."""
    steps: list[Any] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_step(self) -> TaskSettings:
        if self.steps:
            raise ValueError("a task of several steps ([[steps]]) is not run; make each step a task of its own")
        return self
