"""One training run, from configuration to summary.

    engine ◄── proxy ◄── Controller (episodes) ──► store
      ▲                       │ batch
      │ weights v+1           ▼
      └──────────────── trainer process ──► checkpoints

The main loop is `_train`: take a batch, train on it, load the new weights into running generation, open the gate.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agentrl.concurrency.event_loop import first_signal
from agentrl.concurrency.forgotten_await import says_await
from agentrl.concurrency.forks import kept_from_forks
from agentrl.concurrency.loop_watchdog import LoopWatchdog, watch_loop
from agentrl.concurrency.threads import in_thread, in_users_thread
from agentrl.config import RunConfig, check_groups
from agentrl.engine.broadcast import Backend, Broadcast
from agentrl.engine.client.sglang import SGLangEngine
from agentrl.engine.launch import open_engine
from agentrl.episode import Task
from agentrl.errors import AgentRLError, TrainerError
from agentrl.evaluation.evaluate import evaluate_tasks
from agentrl.evaluation.figures import Evaluation
from agentrl.machine.garbage import settled
from agentrl.machine.process_limits import shortages
from agentrl.proxy import ChatFormat, SamplingDefaults
from agentrl.rollout.check_start import check_start
from agentrl.rollout.controller import Batch, Controller
from agentrl.rollout.gate import StalenessGate
from agentrl.rollout.open_runner import check_for_workers, open_runner
from agentrl.rollout.rewards import RewardsInOrder, reward_figure
from agentrl.rollout.sources import GivenTasks, GivenWorkflow, Sources, sources_of
from agentrl.rollout.step_figures import figures
from agentrl.rollout.store import Store
from agentrl.rollout.task_type import task_type_of
from agentrl.rollout.tasks import Tasks, check_same_tasks, training_and_held_out
from agentrl.rollout.workflow import Workflow
from agentrl.run.alarms import AlarmLog
from agentrl.run.durable_trainer import DurableTrainer
from agentrl.run.monitor import Monitor
from agentrl.run.open_run import Run
from agentrl.run.run_directory import (
    appending,
    check_run_dir,
    config_text,
    lock_run,
    prepare_run_dir,
    read_metrics,
    summary_of_finished,
    weights_directory,
    with_run_dir,
    write_config,
)
from agentrl.run.run_store import begin_store, known_tasks, note_lines, write_noted
from agentrl.run.summary import run_summary
from agentrl.run.trainer_client import open_trainer
from agentrl.run.view import BEFORE, PrintedView, RunView

COUNTERS = (
    "wall_s",
    "tokens",
    "episodes_finished",
    "episodes_failed",
    "episodes_abandoned",
    "groups_rejected",
    "tasks_skipped",
    "engine_failures",
    "engine_bad_replies",
    "local_shortages",
)
"""Metrics that count from the run's beginning: a restart goes on from those of the step that it goes on from."""


@dataclass
class _Run:
    config: RunConfig
    run_dir: Path
    view: RunView
    store: Store
    engine: SGLangEngine
    trainer: DurableTrainer
    controller: Controller
    broadcast: Broadcast | None
    monitor: Monitor
    watchdog: LoopWatchdog
    counted_before: dict[str, float]
    """`COUNTERS` of the step that this start goes on from."""


@says_await("run = await agentrl.train(...)")
async def train(
    config: RunConfig,
    *,
    workflow: GivenWorkflow | None = None,
    tasks: GivenTasks | None = None,
    resume: bool = False,
    view: RunView | None = None,
) -> Run:
    """Train a model on a workflow.

    The first SIGINT or SIGTERM ends the run in good order, with a checkpoint; the second acts as it would without agentrl.

    Args:
        config: The configuration. Without a `run_dir`, the run gets a directory in `runs/` that is named by the time.
        workflow: `async def run(episode)`, or a file that defines one. Default: `config.workflow`.
        tasks: A list of tasks; a function that returns an iterable of them, the same one every time; or a source as
            `config.tasks` names it, which is the default.
        resume: Go on with the run in `config.run_dir`. It needs the workflow and the tasks that it was started with.
        view: What shows the progress. Default: a line a step on standard output; `RunView(config)` shows nothing.

    Returns:
        The run. Its `status` is "finished", or "stopped" when a signal ended it.

    Raises:
        UsageError: The input cannot be used. Nothing has been started then.
        AgentRLError: The run cannot go on.
    """
    sources = sources_of(with_run_dir(config), workflow, tasks)
    run_dir = await in_thread(Path(sources.config.run_dir).absolute)  # a workflow may change the working directory
    view, ended = view or PrintedView(sources.config), False
    with anyio.CancelScope() as scope, first_signal(partial(_stop, scope, view)):
        await _begin(sources, view, resume)
        ended = True
    if not ended and view.phase == BEFORE:
        raise KeyboardInterrupt  # nothing has begun that could go on
    return Run(run_dir, stopped=not ended)


async def _begin(sources: Sources, view: RunView, resume: bool) -> None:
    """Check everything that can be checked, make the run's directory or take hold of it, and run."""
    config = sources.config
    run_dir = Path(config.run_dir)
    check_groups(config)
    await in_thread(lambda: check_run_dir(run_dir, resume=resume))
    if resume and (summary := await in_thread(summary_of_finished, config)):
        view.say(
            f"nothing is left to train: run {run_dir} ended with step {summary['steps']}, and steps = {config.steps}"
        )
        return
    workflow = await in_users_thread(sources.load_workflow)
    source, eval_tasks = await in_users_thread(training_and_held_out, config, sources.tasks, task_type_of(workflow))
    if config.rollout.workers:
        check_for_workers(sources.workflow, source, eval_tasks)
    config, chat_format = await check_start(config)
    prepare_run_dir(run_dir)

    async with AsyncExitStack() as stack:
        lock = await in_thread(lock_run, run_dir)
        stack.callback(os.close, lock)
        stack.enter_context(kept_from_forks(lock))
        if not resume:  # before the store, which makes a directory one that can be resumed
            await in_thread(write_config, config)
        await _run_to_the_end(config, view, workflow, source, eval_tasks, chat_format, lock, resume)


def _stop(scope: anyio.CancelScope, view: RunView) -> None:
    scope.cancel()
    if view.phase == BEFORE:
        return  # there is no step to finish
    view.say(
        "stopping: finishing the training step in progress, then writing a checkpoint. A second signal ends the run at once; "
        "what was committed is safe"
    )


async def _run_to_the_end(
    config: RunConfig,
    view: RunView,
    workflow: Workflow,
    tasks: Tasks,
    eval_tasks: list[Task],
    chat_format: ChatFormat,
    lock: int,
    resume: bool,
) -> None:
    run_dir = await in_thread(Path(config.run_dir).absolute)  # a workflow may change the working directory
    async with AsyncExitStack() as stack:
        if resume:
            await in_users_thread(check_same_tasks, tasks, await in_thread(known_tasks, run_dir))
        identity = f"{tasks.identity}, in groups of {config.rollout.group_size}"
        store = stack.enter_context(
            await in_thread(lambda: begin_store(run_dir, identity, config_text(config), resume=resume))
        )
        await in_thread(lambda: write_noted(store, run_dir / "config.json", config_text(config)))
        view.phase = "starting engine and trainer"
        view.say(f"run {config.run_dir}: starting engine and trainer")
        for lacking in await in_thread(lambda: list(shortages(config.rollout.max_concurrent, processes_of(config)))):
            view.say(lacking)
        weights_dir = await in_thread(stack.enter_context, weights_directory(config))
        if weights_dir.is_relative_to(run_dir):
            view.say(f"shared memory is too small for the weights: they pass to the engine through {weights_dir}")
        engine = await stack.enter_async_context(
            open_engine(
                config.model.path,
                config.engine,
                log=run_dir / "engine.log",
                seed=config.seed + store.restart,
                lora_rank=config.trainer.lora.rank if config.trainer.lora else None,
            )
        )
        view.phase = "loading the model into the trainer"
        view.say(f"the engine serves after {time.perf_counter() - view.started:.1f} s; the trainer loads the model")
        for reason in await in_thread(store.set_aside, engine.vocabulary):
            view.say(reason)
        client = await stack.enter_async_context(
            open_trainer(run_dir, weights_dir, config.trainer.step_timeout_s, lock, config.trainer.ranks)
        )
        if chat_format.takes_images:
            view.say("note: images are not trained on yet; a request that holds one is refused, and its episode fails")
        runner = await stack.enter_async_context(
            open_runner(config, workflow, engine, chat_format=chat_format, training=True, logs=run_dir, say=view.say)
        )
        trainer = DurableTrainer(client, store, run_dir, keep=config.trainer.checkpoint.keep, say=view.say)
        weights = await trainer.load()
        if engine.version != weights.version or config.engine.urls or config.trainer.lora is not None:
            await engine.update_weights(weights.path, weights.version)

        stack.enter_context(settled())
        watchdog = stack.enter_context(watch_loop(interrupt_after_s=config.rollout.hang_timeout_s))
        gate = StalenessGate(
            groups_per_batch=config.rollout.groups_per_batch,
            max_staleness=config.rollout.max_staleness,
            order=config.rollout.order,
            window=config.rollout.window,
            version=weights.version,
        )
        steps = await in_thread(read_metrics, run_dir)
        trained = (step for step in steps if step["step"] <= weights.version)
        counted = max((int(count) for (count,) in figures(trained, "groups_counted")), default=0)
        rewards = RewardsInOrder(counted)
        controller = Controller(tasks, config.rollout, config.seed, runner, store, gate, rewards=rewards)
        view.controller = controller
        view.step = view.first_step = weights.version
        bound = "none (greedy)" if gate.bound is None else str(gate.bound)
        view.say(
            f"run {config.run_dir}: step {weights.version} of {config.steps}, order {config.rollout.order}, "
            f"η = {config.rollout.max_staleness}, staleness bound {bound}"
        )
        broadcast = None
        if config.engine.transfer == "broadcast":
            backend: Backend = "gloo" if config.engine.flags.get("device") == "cpu" else "nccl"
            broadcast = Broadcast(engine, client, backend)
        monitor = Monitor(
            config,
            controller,
            AlarmLog(view.say),
            in_flight=lambda: engine.in_flight,
            serving=lambda: engine.serving,
            decode=chat_format.decode,
        )
        last = [row for row in steps if row["step"] == weights.version]
        counted_before = dict(zip(COUNTERS, (figures(last, *COUNTERS) or [()])[0], strict=False))
        run = _Run(
            config, run_dir, view, store, engine, trainer, controller, broadcast, monitor, watchdog, counted_before
        )
        await _evaluate(run, eval_tasks, "before training")
        await _train_and_save(run)
        after = await _evaluate(run, eval_tasks, "after training")
        await in_thread(store.check_in_place)
        newest = await in_thread(store.last_checkpoint)
        shown = Path(config.run_dir)
        view.say(
            f"the run is in {shown}"
            + (f", its newest checkpoint in {shown / 'checkpoints' / newest[1].name}" if newest else "")
            + f"; agentrl audit {shown} tells what became of every task"
        )
        summary = await in_thread(
            lambda: run_summary(
                run_dir,
                store,
                step=trainer.weights.version,
                wall_s=time.perf_counter() - view.started,
                eval_after=after.mean_reward if after else None,
                alarms=monitor.log.begun,
                staleness_bound=gate.bound,
            )
        )
        await in_thread(write_noted, store, run_dir / "summary.json", json.dumps(summary, indent=2) + "\n")


def processes_of(config: RunConfig) -> int:
    """Child processes of a run: the engine's servers that it starts, the trainer's ranks, and its workers."""
    return (0 if config.engine.urls else config.engine.servers) + config.trainer.ranks + config.rollout.workers


async def _evaluate(run: _Run, tasks: Sequence[Any], when: str) -> Evaluation | None:
    if not tasks or (when.startswith("before") and run.trainer.weights.version > 0):
        return None
    run.view.phase = f"evaluating {when}"
    config = run.config
    defaults = SamplingDefaults(temperature=config.eval.temperature, max_tokens=config.rollout.max_tokens)
    runner = run.controller.runner.with_defaults(defaults)
    result = await evaluate_tasks(runner, tasks, config.eval, seed=config.seed)
    if result.failed == len(result.episodes):
        run.view.say(f"every evaluation episode failed; the first:\n{result.first_error}")
    run.view.say(
        f"evaluation {when}: mean reward {result.mean_reward:.3f} over {len(result.episodes)} episodes of {result.tasks} held-out tasks"
    )
    if when.startswith("before"):
        text = json.dumps(result.to_json()) + "\n"
        await in_thread(write_noted, run.store, run.run_dir / "eval_before.json", text)
    return result


async def _train_and_save(run: _Run) -> None:
    """Train to the last step. However it ends, what was trained is checkpointed."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run.controller.run)
            group.start_soon(run.monitor.watch)
            await _train(run)
            group.cancel_scope.cancel()
    except BaseException:
        with suppress(AgentRLError, OSError):
            if lost := await _save_the_rest(run):
                run.view.say(lost)
        raise
    if lost := await _save_the_rest(run):
        raise TrainerError(lost)


async def _save_the_rest(run: _Run) -> str | None:
    """Note the lines of the last steps, then checkpoint these, also when the run is being cancelled. Returns why that was not done."""
    with anyio.CancelScope(shield=True):
        unnoted: Exception | None = None
        try:
            await in_thread(note_lines, run.store, run.run_dir / "metrics.jsonl")
        except (AgentRLError, OSError) as error:
            unnoted = error
        lost = await run.trainer.save_the_rest()
    if lost is None and unnoted is not None:
        raise unnoted
    return lost


async def _train(run: _Run) -> None:
    config, view = run.config, run.view
    view.phase = "training"
    if run.trainer.weights.version >= config.steps:
        view.say(
            f"nothing is left to train: the run is at step {run.trainer.weights.version}, and steps = {config.steps}"
        )
    view.training_started = time.perf_counter()
    run.controller.health.last_end = time.monotonic()  # an evaluation came before
    with appending(run.run_dir / "metrics.jsonl") as log:
        while run.trainer.weights.version < config.steps:
            started = time.perf_counter()
            batch = await run.controller.next_batch()
            if batch is None:
                view.say(f"every task was visited {config.data.epochs} times: the run ends with step {view.step}")
                break
            waited_s = time.perf_counter() - started
            # Shielded: a step that has begun is finished, loaded and logged, also when the run is being stopped.
            with anyio.CancelScope(shield=True):
                record = await _step(run, batch, waited_s)
            log.write(json.dumps(record) + "\n")
            log.flush()
            view.on_step(record)
            if view.step % config.trainer.checkpoint.every == 0 or view.step == config.steps:
                await in_thread(note_lines, run.store, run.run_dir / "metrics.jsonl")
                view.say(f"writing the checkpoint of step {view.step}")
                with run.controller.health.waiting_for("the trainer's checkpoint (trainer.log)"):
                    await run.trainer.checkpoint()
            else:
                await run.trainer.commit_if_written()


async def _step(run: _Run, batch: Batch, waited_s: float) -> dict[str, Any]:
    """Train on one batch and load the weights into running generation; the step's record."""
    started = time.perf_counter()
    health = run.controller.health
    with health.waiting_for("the trainer's step (trainer.log)"):
        metrics = await run.trainer.step(batch.group_ids)
    weights = run.trainer.weights
    if metrics["skipped_optimizer_steps"]:
        run.view.say(
            f"step {weights.version}: {metrics['skipped_optimizer_steps']} optimizer steps skipped, their gradient was not finite"
        )
    update = run.engine.update_weights if run.broadcast is None else run.broadcast.update_weights
    with health.waiting_for("the inference servers to load the new weights (engine.log)"):
        pause_s = await update(weights.path, weights.version)
    run.controller.advance()
    run.view.step = weights.version
    progress = run.controller.progress
    counted = run.controller.rewards.take()
    health.step_ended(metrics)
    health.rewards_counted(counted)
    run.monitor.check()
    record = {
        "step": weights.version,
        **reward_figure(counted).to_metrics(),
        "groups_counted": run.controller.rewards.counted,
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
        "episodes_abandoned": progress.abandoned,
        "loop_lag_max_s": run.watchdog.take_max_lag_s(),
        "groups_rejected": progress.rejected_groups,
        "tasks_skipped": progress.skipped_tasks,
        "engine_failures": run.engine.fleet.failures,
        "engine_bad_replies": run.engine.fleet.bad_replies,
        "local_shortages": run.engine.fleet.shortages,
        **run.controller.runner.metrics(),
        **run.monitor.log.to_metrics(),
    }
    return record | {name: record[name] + run.counted_before.get(name, 0) for name in COUNTERS}
