"""Watches a run while it trains, and says what is wrong with it: at every step, and every few seconds also where no step comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from agentrl.config import RunConfig
from agentrl.rollout.controller import Controller
from agentrl.run.alarms import AlarmLog, current_alarms

CHECK_EVERY_S = 5.0
"""Time between two checks."""


@dataclass(frozen=True)
class AlarmWatch:
    """Checks the health of a run."""

    config: RunConfig
    controller: Controller
    log: AlarmLog
    in_flight: Callable[[], int]
    """How many replies the engine is making."""
    serving: Callable[[], Sequence[str]]
    """The servers that are in service."""
    decode: Callable[[list[int]], str]

    async def watch(self) -> None:
        """Check now and then, until cancelled."""
        while True:
            await anyio.sleep(CHECK_EVERY_S)
            self.check()

    def check(self) -> None:
        """Say what is wrong now, unless it was said lately."""
        gate = self.controller.gate
        health = self.controller.health.snapshot(self.decode, self.waiting_for())
        self.log.update(current_alarms(health, self.config, gate.bound), f"step {gate.version}")

    def waiting_for(self) -> str:
        """Return what the run is waiting for, in words."""
        controller = self.controller
        health = controller.health
        if health.doing:
            return f"{health.doing}, for {time.monotonic() - health.doing_since:.0f} s now"
        if not self.serving():
            return "an inference server: none is in service (engine.log)"
        if replies := self.in_flight():
            return f"the engine, which is making {replies} replies (engine.log)"
        if running := controller.progress.running:
            return (
                f"{running} episodes, none of which is waiting for the model: their workflow, environments or sandboxes do not "
                "come back (`rollout.episode_timeout_s` bounds them)"
            )
        return "groups to start"
