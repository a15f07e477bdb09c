"""The main loop of a run: take a batch, train on it, load the new weights into running generation, open the gate.

engine ◄── proxy ◄── Controller (episodes) ──► store
  ▲                       │ batch
  │ weights v+1           ▼
  └──────────────── trainer process ──► checkpoints
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from agentrl.config import RunConfig
from agentrl.engine.client import SGLangEngine
from agentrl.episode import Task
from agentrl.errors import AgentRLError, TrainerError
from agentrl.evaluation.evaluate import evaluate_tasks
from agentrl.evaluation.figures import Interval
from agentrl.record.end_reason import EndReason
from agentrl.rollout.alarms import ALARMS, AlarmWatch
from agentrl.rollout.controller import Batch, Controller
from agentrl.run.open_run import Run
from agentrl.run.run_directory import appending
from agentrl.run.trainer_supervisor import TrainerSupervisor
from agentrl.run.view import RunView
from agentrl.store.changes import InsertEvaluation
from agentrl.store.read_episode import RunEpisode
from agentrl.store.rewards import evaluations
from agentrl.store.store import Store
from agentrl.system import traces
from agentrl.system.loop_watchdog import LoopWatchdog
from agentrl.system.tasks import in_thread
from agentrl.tasks.curriculum import TaskList
from agentrl.tracking.tracker import Tracking

SAMPLES_EVERY = 10
"""Steps from one table of sample transcripts in the trackers to the next."""
COUNTERS = (
    "wall_s",
    "tokens",
    "episodes_finished",
    "episodes_failed",
    *(f"reason_{reason}" for reason in EndReason if reason != EndReason.FINISHED),
    "groups_rejected",
    "tasks_skipped",
    "engine_failures",
    "engine_bad_replies",
    *(f"sandbox_{count}" for count in ("taken", "wait_s", "runs", "run_s", "resets", "reset_s", "started", "lost")),
    "workers_lost",
    *(f"alarm_{name}" for name in ALARMS),
)
"""Metrics that count from the run's beginning: a restart goes on from those of the last line."""


@dataclass
class TrainingRun:
    """A run whose parts are all there."""

    config: RunConfig
    view: RunView
    store: Store
    engine: SGLangEngine
    trainer: TrainerSupervisor
    controller: Controller
    update_weights: Callable[[Path, int], Awaitable[float]]
    """Has the servers load weights of a version; returns the pause in seconds."""
    alarm_watch: AlarmWatch
    watchdog: LoopWatchdog
    tracking: Tracking
    held_out: Sequence[Task]
    counted_before: dict[str, Any]
    """The last line of the start before, also of a step that a crash undid: its episodes stay, and `COUNTERS` go on."""


async def evaluate_held_out(run: TrainingRun) -> None:
    """Evaluate the policy as it is now, where there are held-out tasks, and no earlier start of the run did it."""
    step = run.trainer.weights.version
    if not run.held_out or step in await in_thread(run.store.read, evaluations):
        return
    when = f"after {'training' if step == run.config.steps else f'step {step}'}" if step else "before training"
    run.view.phase = f"evaluating {when}"
    with run.controller.health.waiting_for(f"the evaluation {when}"):
        result = await evaluate_tasks(run.controller.runner, run.held_out, run.config)
    run.view.phase = "training"
    if result.failed == result.episode_count:
        run.view.say(f"every evaluation episode failed; the first:\n{result.first_error}")
    failed = f", of which {result.failed} failed and count as reward 0" if result.failed else ""
    run.view.say(
        f"evaluation {when}: mean reward {Interval(result.mean_reward, *result.mean_reward_95)} over {result.episode_count} episodes of "
        f"{result.tasks} held-out tasks{failed}"
    )
    run.tracking.log(step, result.to_metrics())
    await in_thread(run.store.write, [InsertEvaluation(step, result.to_json(per_task=False))])


async def _reached_goal(run: TrainingRun) -> bool:
    """Whether the evaluation of the policy as it is now ends the run."""
    step, goal = run.trainer.weights.version, run.config.eval.stop_at
    if goal is None or step not in (found := await in_thread(run.store.read, evaluations)):
        return False
    if reached := found[step]["mean_reward"] >= goal:
        run.view.say(f"`eval.stop_at` = {goal:g} is reached: the run ends with step {step}")
    return bool(reached)


async def train_and_save(run: TrainingRun) -> None:
    """Train to the last step. However it ends, what was trained is checkpointed.

    Raises:
        TrainerError: The last checkpoint was not made.
    """
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run.controller.run)
            group.start_soon(run.alarm_watch.watch)
            await _train(run)
            group.cancel_scope.cancel()
    except BaseException:
        with suppress(AgentRLError, OSError):
            if lost := await run.trainer.save_remaining():
                run.view.say(lost)
        raise
    if lost := await run.trainer.save_remaining():
        raise TrainerError(lost)


async def _train(run: TrainingRun) -> None:
    config, view = run.config, run.view
    view.phase = "training"
    view.training_started = time.perf_counter()
    recorded = Run(run.store.directory)
    run.controller.health.last_end = time.monotonic()  # an evaluation came before
    with appending(run.store.directory / "metrics.jsonl") as log:
        while run.trainer.weights.version < config.steps and not await _reached_goal(run):
            started = time.perf_counter()
            # A run that is being stopped takes no further step, also where a batch is ready.
            await anyio.lowlevel.checkpoint()
            batch = await run.controller.next_batch()
            if batch is None:
                view.say(f"every task was visited {config.data.epochs} times: the run ends with step {view.step}")
                break
            with run.controller.health.waiting_for("the trainer to load the model (trainer.log)"):
                await run.trainer.loaded.wait()
            waited_s = time.perf_counter() - started
            # Shielded: a step that has begun is finished, loaded, logged and checkpointed, also when the run is being stopped.
            with anyio.CancelScope(shield=True):
                named = {"agentrl.step": run.trainer.weights.version + 1, "agentrl.episodes": len(batch.rewards)}
                with traces.span("training step", named):
                    record = await _step(run, batch, waited_s)
                log.write(json.dumps(record) + "\n")
                log.flush()
                view.on_step(record)
                run.tracking.log(record["step"], record)
                if record["step"] % SAMPLES_EVERY == 0:
                    run.tracking.show(record["step"], partial(_finished, recorded, batch.group_ids))
                if (step := run.trainer.weights.version) % config.trainer.checkpoint.every == 0 or step == config.steps:
                    view.say(f"writing the checkpoint of step {step}")
                    with run.controller.health.waiting_for("the trainer's checkpoint (trainer.log)"):
                        await run.trainer.checkpoint()
                else:
                    await run.trainer.commit_if_written()
            if config.eval.every and step % config.eval.every == 0 and step < config.steps:
                await evaluate_held_out(run)


def _finished(recorded: Run, groups: Sequence[int]) -> list[RunEpisode]:
    return [episode for group in groups for episode in recorded.episodes(group=group, reason="finished")]


async def _step(run: TrainingRun, batch: Batch, waited_s: float) -> dict[str, Any]:
    """Train on one batch and load the weights into running generation; the step's record."""
    started = time.perf_counter()
    health = run.controller.health
    with health.waiting_for("the trainer's step (trainer.log)"), traces.span("trainer"):
        metrics = await run.trainer.step(batch.group_ids)
    weights = run.trainer.weights
    if metrics["skipped_optimizer_steps"]:
        run.view.say(
            f"step {weights.version}: {metrics['skipped_optimizer_steps']} optimizer steps skipped, their gradient was not finite"
        )
    with (
        health.waiting_for("the inference servers to load the new weights (engine.log)"),
        traces.span("weight update", {"agentrl.version": weights.version}),
    ):
        pause_s = await run.update_weights(weights.path, weights.version)
    run.controller.advance()
    run.view.step = weights.version
    progress = run.controller.progress
    health.step_ended(metrics)
    run.alarm_watch.check()
    record = {
        "step": weights.version,
        **(await run.controller.take_rewards()).to_metrics(),
        "groups_counted": run.controller.counted,
        "batch_reward_mean": sum(batch.rewards) / len(batch.rewards),
        "episodes": len(batch.rewards),
        **metrics,
        "wait_s": waited_s,
        "pause_s": pause_s,
        "step_s": waited_s + time.perf_counter() - started,
        "wall_s": time.perf_counter() - run.view.started,
        "tokens": progress.tokens,
        "episodes_running": progress.running,
        "episodes_finished": progress.finished,
        "episodes_failed": progress.failed,
        **{f"reason_{reason}": count for reason, count in progress.reasons.items() if reason != EndReason.FINISHED},
        **health.to_metrics(),
        "loop_lag_max_s": run.watchdog.take_max_lag_s(),
        "groups_rejected": progress.rejected_groups,
        "tasks_skipped": progress.skipped_tasks,
        "engine_failures": run.engine.fleet.failures,
        "engine_bad_replies": run.engine.fleet.bad_replies,
        **{f"server_{index}_tokens": server.take_tokens() for index, server in enumerate(run.engine.fleet.servers)},
        **run.controller.runner.metrics(),
        **(run.controller.tasks.take_metrics() if isinstance(run.controller.tasks, TaskList) else {}),
        **run.alarm_watch.take_metrics(),
    }
    sums = {name: record.get(name, 0) + run.counted_before.get(name, 0) for name in COUNTERS}
    return record | {name: total for name, total in sums.items() if name in record or total}


def waiting_for(controller: Controller, engine: SGLangEngine) -> str:
    """Return what a run is waiting for, in words."""
    health = controller.health
    if health.doing:
        return f"{health.doing}, for {time.monotonic() - health.doing_since:.0f} s now"
    if not engine.serving:
        return "an inference server: none is in service (engine.log)"
    if engine.in_flight:
        return f"the engine, which is making {engine.in_flight} replies (engine.log)"
    if running := controller.progress.running:
        return (
            f"{running} episodes, none of which is waiting for the model: their workflow, environments or sandboxes do not "
            "come back (`rollout.episode_timeout_s` bounds them)"
        )
    return "groups to start"
