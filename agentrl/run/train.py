"""One training run, from configuration to summary.

train ─► _begin: checks, and holds the directory
          ├─► open_engine: servers start ─────────────────────────────┐                 ┌─► trainer.load ───┐
          └─► chat format ─► _run: store ─► open_trainer: it starts ──┴► open_rollout ──┴► first episodes ──┴► train_and_save ─► conclude: summary
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from agentrl.config.run import RunConfig, check_is_config, check_training, config_text, on_cluster
from agentrl.engine.broadcast import Broadcast
from agentrl.engine.client import SGLangEngine
from agentrl.episode import Task
from agentrl.errors import AgentRLError, one_line
from agentrl.proxy import ChatFormat
from agentrl.proxy.errors import first_error
from agentrl.rollout.alarms import AlarmWatch, Seen, alarms
from agentrl.rollout.check_start import check_start, check_tasks, with_chat_format
from agentrl.rollout.controller import Controller
from agentrl.rollout.gate import gate_of
from agentrl.rollout.open_runner import Runner, open_engine, open_hosts, open_rollout
from agentrl.rollout.workflow import GivenTasks, GivenWorkflow, Sources, Workflow, sources_of
from agentrl.run.checkpoint_url import CheckpointUrl, checkpoint_url
from agentrl.run.metrics_page import metrics_of_run
from agentrl.run.open_run import Run
from agentrl.run.run_directory import FAILURE, begin_store, finished_step, weights_directory, with_run_dir, write_config
from agentrl.run.run_lock import check_run_dir, hold_run_dir
from agentrl.run.summary import conclude
from agentrl.run.trainer_client import Weights, open_trainer
from agentrl.run.trainer_ranks import rank_hosts
from agentrl.run.trainer_supervisor import TrainerSupervisor
from agentrl.run.training_loop import TrainingRun, evaluate_held_out, train_and_save, waiting_for
from agentrl.run.view import BEFORE, PrintedView, RunView
from agentrl.store.store import Store
from agentrl.system.event_loop import first_signal
from agentrl.system.files import write_whole
from agentrl.system.host import OpenHost
from agentrl.system.imports import check_extra
from agentrl.system.loop_watchdog import LoopWatchdog, watch_loop
from agentrl.system.tasks import background_tasks, in_thread, in_users_thread, opening
from agentrl.system.this_process import settled, shortages
from agentrl.tasks.curriculum import Tasks, open_run_tasks
from agentrl.tasks.task_type import task_type_of
from agentrl.tasks.tasks import TaskStream
from agentrl.tracking.tracker import MakeTracker, Tracking, load_trackers, open_tracking


async def train(
    config: RunConfig,
    *,
    workflow: GivenWorkflow | None = None,
    tasks: GivenTasks | None = None,
    resume: bool = False,
    view: RunView | None = None,
) -> Run:
    """Train a model on a workflow.

    The first SIGINT, SIGTERM or SIGHUP (a closed terminal) ends the run in good order, with a checkpoint; the second acts as it would without agentrl.

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
        UsageError: The input cannot be used. No run has begun then, and nothing of one is left.
        AgentRLError: The run cannot go on.
        KeyboardInterrupt: A signal came before there was anything to go on with.
    """
    check_is_config(config, "train")
    sources = sources_of(with_run_dir(config), workflow, tasks)
    run_dir = await in_thread(Path(sources.config.run_dir).absolute)  # a workflow may change the working directory
    view, ended = view or PrintedView(sources.config), False
    try:
        with anyio.CancelScope() as scope, first_signal(partial(_stop, scope, view)):
            await _begin(sources, view, resume)
            ended = True
    except Exception as error:
        if view.phase != BEFORE:
            cause = first_error(error)
            with suppress(AgentRLError, OSError):
                await in_thread(write_whole, run_dir / FAILURE, f"{type(cause).__name__}: {one_line(cause)}")
        raise
    if not ended and view.phase == BEFORE:
        raise KeyboardInterrupt  # nothing has begun that could go on
    return Run(run_dir)


async def _begin(sources: Sources, view: RunView, resume: bool) -> None:
    """Check everything that can be checked, make the run's directory or take hold of it, and run."""
    config = on_cluster(sources.config)
    run_dir = Path(config.run_dir)
    check_training(config)
    await in_thread(check_extra, "train", "training")
    url = await in_thread(checkpoint_url, config)
    await in_thread(lambda: check_run_dir(run_dir, resume=resume))
    if resume and (ended := await in_thread(finished_step, run_dir, config)) is not None:
        goal = f", where it reached `eval.stop_at` = {config.eval.stop_at:g}" if ended < config.steps else ""
        view.say(
            f"nothing is left to train, no key changes: run {run_dir} ended with step {ended} of {config.steps}{goal}"
        )
        return
    workflow = await in_users_thread(sources.load_workflow)
    source, held_out = await in_users_thread(open_run_tasks, config, sources.tasks, task_type_of(workflow))
    config = await check_start(config, view.say, training=True)
    known = [*(() if isinstance(source, TaskStream) else source.tasks), *held_out]
    await check_tasks(config, sources.workflow, task_type_of(workflow), known)
    trackers = await in_users_thread(load_trackers, config.tracking.trackers)
    async with AsyncExitStack() as stack:
        lock = await in_thread(stack.enter_context, hold_run_dir(config, resume=resume))
        seed = config.seed + 1 + (await _count_restarts(run_dir, source) if resume else 0)
        open_host = await stack.enter_async_context(open_hosts(config))
        engine = await stack.enter_async_context(
            opening(lambda: open_engine(config, logs=run_dir, seed=seed, training=True, open_host=open_host))
        )
        bounded, chat_format = await with_chat_format(config)  # while the servers start
        if not resume:  # before the store, which makes a directory one that can be resumed
            await in_thread(write_config, bounded)
        start = _Start(bounded, view, workflow, source, held_out, chat_format, lock, url, resume, trackers, open_host)
        await _run(start, engine)


def _stop(scope: anyio.CancelScope, view: RunView) -> None:
    scope.cancel()
    if view.phase == BEFORE:
        return  # there is no step to finish
    view.say(
        "stopping: a training step in progress is finished, and a checkpoint is written. A second signal ends the run at once; "
        "what was committed is safe"
    )


@dataclass(frozen=True)
class _Start:
    """The checked input of a run."""

    config: RunConfig
    view: RunView
    workflow: Workflow
    tasks: Tasks
    held_out: list[Task]
    chat_format: ChatFormat
    lock: int
    """The descriptor that holds the run directory."""
    url: CheckpointUrl | None
    """Where checkpoints are kept too."""
    resume: bool
    trackers: Mapping[str, MakeTracker]
    open_host: OpenHost


async def _run(start: _Start, opened_engine: Callable[[], Awaitable[SGLangEngine]]) -> None:
    """Open the other parts of a run, train, and write what came of it."""
    config, view = start.config, start.view
    async with AsyncExitStack() as stack:
        run_dir = await in_thread(Path(config.run_dir).absolute)
        identity = f"{start.tasks.identity}, in groups of {config.rollout.group_size}"
        begun = begin_store(run_dir, identity, config_text(config), resume=start.resume)
        store = await in_thread(stack.enter_context, begun)
        weights_dir = await in_thread(stack.enter_context, weights_directory(config))
        await _say_what_starts(start, weights_dir)
        hosts = rank_hosts(config, start.open_host)
        async with (
            open_trainer(run_dir, config, weights_dir, lock=start.lock, hosts=hosts) as client,
            open_rollout(
                config,
                start.workflow,
                engine := await opened_engine(),
                chat_format=start.chat_format,
                training=True,
                logs=run_dir,
                say=view.say,
                open_host=start.open_host,
                middleware=partial(metrics_of_run, config, view),
            ) as runner,
            background_tasks() as beside,
        ):
            trainer = TrainerSupervisor(
                client, store, run_dir, keep=config.trainer.checkpoint.keep, say=view.say, url=start.url
            )
            await _load(start, store, engine, trainer, beside)
            opened = open_tracking(start.trackers, config, run_dir, trainer.weights.version, view.say)
            tracking = await stack.enter_async_context(opened)
            with settled(), watch_loop() as watchdog:
                run = await _training_run(start, store, engine, runner, trainer, watchdog, tracking)
                if not run.trainer.weights.version:
                    await evaluate_held_out(run)
                await train_and_save(run)
                await evaluate_held_out(run)
                await conclude(run)


async def _count_restarts(run_dir: Path, tasks: Tasks) -> int:
    """Check that a run goes on with the tasks that it had, and return how often it has started."""
    with await in_thread(partial(Store, run_dir / "store.sqlite", must_exist=True)) as known:
        if isinstance(tasks, TaskStream):
            await in_users_thread(tasks.check_begins_with, await in_thread(known.task_digests))
        return known.restart


async def _say_what_starts(start: _Start, weights_dir: Path) -> None:
    """Say what is started, and what this machine is short of."""
    config, view = start.config, start.view
    view.phase = "starting engine and trainer"
    view.say(f"run {config.run_dir}: starting engine and trainer; {start.chat_format.summary}")
    for lacking in await in_thread(lambda: list(shortages(config.rollout.max_concurrent))):
        view.say(lacking)
    if weights_dir.is_relative_to(await in_thread(Path(config.run_dir).absolute)):
        view.say(f"shared memory is too small for the weights: they pass to the engine through {weights_dir}")
    if start.chat_format.takes_images:
        view.say("note: images are not trained on yet; a request that holds one is refused, and its episode fails")


async def _load(
    start: _Start, store: Store, engine: SGLangEngine, trainer: TrainerSupervisor, beside: TaskGroup
) -> None:
    """Load the model, or the last checkpoint, into the trainer, and give the engine the same weights.

    A new run whose servers hold the model as it is begins before the trainer has loaded it; the first step waits for that.
    """
    config, view = start.config, start.view
    view.say(f"the engine serves after {time.perf_counter() - view.started:.1f} s; the trainer loads the model")
    for reason in await in_thread(store.reject_episodes, engine.vocabulary):
        view.say(reason)
    as_model = not (engine.version or config.engine.urls or config.trainer.lora is not None)
    if as_model and not start.resume:
        trainer.weights = Weights(0, Path(config.model.path))
        beside.start_soon(trainer.load)
        return
    view.phase = "loading the model into the trainer"
    weights = await trainer.load()
    if engine.version != weights.version or not as_model:
        await engine.update_weights(weights.path, weights.version)


async def _training_run(
    start: _Start,
    store: Store,
    engine: SGLangEngine,
    runner: Runner,
    trainer: TrainerSupervisor,
    watchdog: LoopWatchdog,
    tracking: Tracking,
) -> TrainingRun:
    """Put together what steers a run that goes on after the trainer's version."""
    config, view, version = start.config, start.view, trainer.weights.version
    steps = await in_thread(lambda: Run(store.directory).metrics)
    rollout = config.rollout
    counted = next((row["groups_counted"] for row in reversed(steps) if row["step"] <= version), 0)
    await in_thread(store.forget_evaluations, version)
    undone = {row["step"]: row["groups_counted"] for row in steps if row["step"] > version}
    controller = Controller(
        start.tasks, rollout, config.seed, runner, store, gate_of(rollout, version), counted=counted, undone=undone
    )
    view.controller, view.step, view.first_step = controller, version, version
    again = f"; what was trained on up to step {max(undone)} is kept, and trained on again" if undone else ""
    view.say(
        f"run {config.run_dir}: step {version} of {config.steps}, η = {rollout.max_staleness}, staleness bound {controller.gate.bound}{again}"
    )
    sender: Broadcast | SGLangEngine = engine
    if config.engine.transfer == "broadcast":
        sender = Broadcast(engine, trainer.client, "gloo" if config.engine.flags.get("device") == "cpu" else "nccl")
    seen = Seen(controller.health, config, start.chat_format.decode, lambda: waiting_for(controller, engine))
    return TrainingRun(
        config=config,
        view=view,
        store=store,
        engine=engine,
        trainer=trainer,
        controller=controller,
        update_weights=sender.update_weights,
        alarm_watch=AlarmWatch(partial(alarms, seen, training=True), tracking.alarm, lambda: f"step {view.step}"),
        watchdog=watchdog,
        tracking=tracking,
        held_out=start.held_out,
        counted_before=steps[-1] if steps else {},
    )
