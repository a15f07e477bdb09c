"""The LoRA adapters that requests name: one for all of them, or one for each role that is a policy of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.engine.adapter_folders import adapter_folders, check_weights
from agentrl.errors import ConfigError, EngineError


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as servers know it. They report the version of the model under it alone: what an adapter makes has its."""

    name: str
    version: int
    directory: Path | None = None
    """Where its files are; None in a process that names it and does not load it."""


@dataclass(frozen=True)
class Adapters:
    """The adapters of one version of the weights."""

    by_role: Mapping[str, Adapter] = field(default_factory=dict)
    """By role; the only one by "". {}: tokens are the served model's own."""

    def __bool__(self) -> bool:
        """Return whether there is one."""
        return bool(self.by_role)

    def __iter__(self) -> Iterator[Adapter]:
        """Yield them, in an order that is always the same."""
        yield from self.by_role.values()

    def of(self, role: str) -> Adapter | None:
        """Return the adapter that answers a role; None: the served model, as long as there is none at all.

        Raises:
            EngineError: There are adapters, and none of this role.
        """
        if not self.by_role:
            return None
        try:
            return self.by_role[role]
        except KeyError:
            known = ", ".join(self.by_role) if "" not in self.by_role else "one for all roles"
            raise EngineError(
                f"no adapter of the role {role!r} is loaded, but {known}; see `trainer.lora.roles`"
            ) from None


def adapters_in(checkpoint: Path, version: int) -> Adapters:
    """Return the adapters in a directory of weights, with new names; none: it holds a whole model alone.

    Raises:
        EngineError: A file is missing or damaged.
        OSError: One cannot be read.
    """
    try:
        check_weights(checkpoint)
    except ConfigError as error:
        raise EngineError(str(error)) from error
    found = {}
    for role, folder in adapter_folders(checkpoint).items():
        # Named as no others: servers that outlive this process may know adapters of others.
        name = "-".join(part for part in (f"v{version}", role, uuid.uuid4().hex) if part)
        found[role] = Adapter(name, version, folder)
    return Adapters(found)
