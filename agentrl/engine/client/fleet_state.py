"""The state of the servers that is sent to the processes which call them too, and their reports: plain values, which any channel may carry.

the engine's process                              a process that follows
Followers   ── FleetState ──►                     FollowingEngine        who is in service, which weights are served, whether replies wait
◄── FollowerReport ──                                        which state it has taken over, and what it has counted
◄── LossReport ──                                            a server that it found lost
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.engine.client.server_facts import ServerAbilities


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Bounds of an engine's waits."""

    request_timeout_s: float = 600
    """One reply, interruptions included."""
    hang_timeout_s: float = 30
    """A server that answers neither a health check nor a pause within this is taken for dead."""
    health_interval_s: float = 5
    """Time between two looks at a server."""
    balance_threshold: int = 8
    """A session leaves its server when that has so many more replies in flight than the least busy one."""


@dataclass(frozen=True)
class ServerState:
    """One server of a fleet."""

    url: str
    """Where it is called, secrets included."""
    incarnation: int
    """How often it was put into service: one that was found lost is used again with the next."""
    serving: bool
    """Whether it takes requests; else it is lost for now."""
    abilities: ServerAbilities


@dataclass(frozen=True)
class FleetState:
    """All that a follower needs to know of a fleet. A later one replaces an earlier one whole."""

    number: int
    """It grows with each change."""
    servers: Sequence[ServerState]
    running: bool
    """Whether replies may begin. False from before an update begins until its end."""
    ends_replies: bool
    """Whether replies that are open are being ended, so that their end is to be reported: in pause mode `abort`."""
    version: int
    """The version that new tokens are of."""
    model_version: int | None
    """That of the weights under all adapters."""
    newest_version: int | None
    updates: int
    keeps_cache: bool
    vocabulary: int | None
    adapters: Mapping[str, tuple[str, int]]
    """(name, version) of the adapters of new tokens, by role."""
    limits: EngineLimits

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FleetState:
        """Return the inverse of `dataclasses.asdict`, from JSON. Raises KeyError, TypeError or ValueError for what is none."""
        servers = [
            ServerState(**{**server, "abilities": ServerAbilities(**server["abilities"])})
            for server in values["servers"]
        ]
        adapters = {role: (name, version) for role, (name, version) in values["adapters"].items()}
        limits = EngineLimits(**values["limits"])
        return cls(**{**values, "servers": servers, "adapters": adapters, "limits": limits})


@dataclass(frozen=True)
class FollowerReport:
    """A follower has taken over a state, has no reply open that is being ended, or lets know what it has counted."""

    number: int
    """Of the newest state that it has taken over."""
    in_flight: Mapping[str, int]
    """Its open replies, by the URL of the server."""
    tokens: Mapping[str, int]
    """Generated since its last report, by the URL of the server."""
    bad_replies: int
    """Since its last report, as `shortages` are."""
    shortages: int
    last_failure: str


@dataclass(frozen=True)
class LossReport:
    """A follower found a server lost, and uses it no more until it is put into service again."""

    url: str
    incarnation: int
    number: int
    """Of the newest state that it had taken over."""
    reason: str
    unreachable: bool
    """Whether a connection failed, which may be the follower's own; else the server answered what it must not."""
