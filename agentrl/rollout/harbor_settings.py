"""The settings of a terminal task: `task.toml` in Harbor's form, schema 1.0 to 1.4, as harbor 0.25 reads it.

What a sandbox cannot give is refused here, before a run starts. Terminal-Bench's settings are put into this form (`terminal_bench_form.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([GMK])B?", re.IGNORECASE)
_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class _Section(BaseModel):
    """A table of `task.toml`. Harbor ignores what it does not know, and so do we."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def _megabytes(given: Any) -> Any:
    found = _SIZE.fullmatch(given.strip()) if isinstance(given, str) else None
    return int(float(found[1]) * _MB[found[2].upper()]) if found else given


Megabytes = Annotated[int, BeforeValidator(_megabytes), Field(gt=0)]


def _absolute(path: str) -> str:
    if not path.startswith("/") or os.path.normpath(path) != path or "\0" in path:
        raise ValueError(f"{path!r} must be an absolute path without '.', '..' and a final '/'")
    return path


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class Environment(_Section):
    """`[environment]`: what the agent works in."""

    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = Field(default=None, min_length=1)
    workdir: AbsolutePath | None = None
    """None: the WORKDIR of the image."""
    cpus: float = Field(default=1.0, gt=0)
    memory_mb: Megabytes = 2048
    storage_mb: Megabytes = 10240
    env: dict[str, str] = Field(default_factory=dict)
    os: str = "linux"
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

    timeout_sec: float = Field(default=600.0, gt=0)
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
    """Names of files that steer tests (`agentrl.workflows.repository.STEERING`) and are the agent's to write in this task."""


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
