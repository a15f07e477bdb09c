"""The settings of a task folder, its `task.toml`. A limit is the most that programs may use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([TGMK])B?", re.IGNORECASE)
_MB = {"T": 2.0**20, "G": 1024.0, "M": 1.0, "K": 1 / 1024}


class _Section(BaseModel):
    """A table of `task.toml`. Harbor ignores what it does not know, and so do we."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def _megabytes(given: Any) -> Any:
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    return given if found is None else int(float(found[1]) * _MB[found[2].upper()])


Megabytes = Annotated[int, BeforeValidator(_megabytes), Field(gt=0)]
Cpus = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
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
    memory_mb: Megabytes = Field(default=2048, validation_alias=AliasChoices("memory_mb", "memory"))
    storage_mb: Megabytes = Field(default=10240, validation_alias=AliasChoices("storage_mb", "storage"))
    env: dict[str, str] = Field(default_factory=dict)
    os: Literal["linux"] = "linux"
    gpus: int = 0
    tpu: Any = None
    mcp_servers: list[Any] = Field(default_factory=list)
    healthcheck: Any = None

    @model_validator(mode="after")
    def _can_be_had(self) -> Environment:
        if wanted := [name for name in ("gpus", "tpu", "mcp_servers", "healthcheck") if getattr(self, name)]:
            raise ValueError(
                f"{', '.join(wanted)} cannot be had in a container, which runs the image alone; leave the task out"
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
