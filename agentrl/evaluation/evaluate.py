"""Evaluation: the same workflow, every task k times, nothing trained.

evaluate(config) ─► open_engine ─► open_rollout ─► runner ─► evaluate_tasks ─► Evaluation
                    engine, proxy, sandboxes
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agentrl.config.run import RunConfig, check_is_config, check_set, on_cluster
from agentrl.episode import Task
from agentrl.errors import ConfigError, UsageError, one_line
from agentrl.evaluation.directory import KeptEpisodes, new_directory
from agentrl.evaluation.figures import EvaluatedEpisode, Evaluation, evaluated_episode, summarise
from agentrl.evaluation.progress import EvaluationView, PrintedEvaluation
from agentrl.proxy import ChatFormat, SamplingDefaults
from agentrl.rollout.alarms import AlarmWatch, Health, Seen, alarms, shares_text
from agentrl.rollout.check_start import check_endpoint, check_start, check_tasks, with_chat_format
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.open_runner import ERRORS_WITH_A_LOG, Runner, open_engine, open_hosts, open_rollout
from agentrl.rollout.run_episode import remote_runner
from agentrl.rollout.workflow import GivenTasks, GivenWorkflow, Sources, Workflow, sources_of
from agentrl.system.failure_text import without_secrets
from agentrl.system.files import scratch_directory
from agentrl.system.loop_watchdog import watch_loop
from agentrl.system.tasks import in_thread, in_users_thread
from agentrl.system.this_process import settled, shortages
from agentrl.tasks.task_type import task_type_of
from agentrl.tasks.tasks import episode_seed, fingerprint, list_tasks
from agentrl.tracking.tracker import load_trackers, open_tracking

NAMING_FIELDS = ("id", "task_id", "name", "instance_id", "prompt", "question")
"""Fields that name a task in a table, the first that it has."""


async def evaluate(
    config: RunConfig,
    *,
    workflow: GivenWorkflow | None = None,
    tasks: GivenTasks | None = None,
    base_url: str | None = None,
    api_key: str = "-",
    out: str | Path | None = None,
    view: EvaluationView | None = None,
) -> Evaluation:
    """Run a workflow on every task, `config.eval.samples` times, without training.

    The same `config.seed` gives the same episode seeds.

    Args:
        config: `eval`, `model`, `engine`, `rollout` and `sandbox` are used.
        workflow: `async def run(episode)`, or a file that defines one. Default: `config.workflow`.
        tasks: A list of tasks, a function that returns an iterable of them, or a source as `config.tasks` names it, which is the
            default.
        base_url: An OpenAI-compatible endpoint, at which `config.model.path` is the model's name. Default: the model is served
            here for as long as it takes.
        api_key: The endpoint's.
        out: The directory that keeps the episodes; the finished ones that it holds already are not run again. Default: one in
            `evaluations/` that is named by the time.
        view: What shows the progress. Default: some lines on standard error; `EvaluationView()` shows nothing.

    Returns:
        Mean reward and pass@k with confidence intervals, and every episode. Those of an endpoint elsewhere have no transcript: what
        is said there is not recorded.

    Raises:
        UsageError: The input cannot be used. Nothing has been started then.
        ConfigError: `rollout.workers` is set beside `base_url`.
        AgentRLError: The evaluation cannot go on.
    """
    check_is_config(config, "evaluate")
    sources = sources_of(config, workflow, tasks)
    decode: Callable[[list[int]], str] = str
    run, config, view = await in_users_thread(sources.load_workflow), sources.config, view or PrintedEvaluation()
    check_set(config, "model.path")
    if sources.tasks is None and not config.tasks:
        raise UsageError("`data.sources` mixes tasks of a training run; name those of an evaluation with `tasks`")
    given = config.tasks if sources.tasks is None else sources.tasks
    chosen = await in_users_thread(list_tasks, given, config.eval.limit, task_type_of(run), config.data)
    identity = {
        "workflow": _name_of(sources),
        "tasks": fingerprint(chosen),
        "model": config.model.path,
        "base_url": base_url and without_secrets(base_url),
        "workflow_sha256": await in_thread(_workflow_hash, sources),
        "temperature": config.eval.temperature,
        "top_p": config.rollout.top_p,
        "max_tokens": config.rollout.max_tokens,
        "seed": config.seed,
    }
    if base_url:
        if config.rollout.workers:
            what = "`rollout.workers` runs workflows on the model that is served here; leave `base_url` out, or it"
            raise ConfigError(what)
        if out is None or not await in_thread(Path(out, "store.sqlite").exists):
            await check_endpoint(base_url, api_key)  # of an evaluation that goes on, nothing may be left to ask it
        opened = partial(_remote, config, run, base_url, api_key)
    else:
        config, chat_format = await with_chat_format(await check_start(on_cluster(config), view.say))
        opened, decode = partial(_served, config, run, chat_format, view), chat_format.decode
    await check_tasks(config, sources.workflow, task_type_of(run), chosen)
    trackers = await in_users_thread(load_trackers, config.tracking.trackers)
    directory = await in_thread(new_directory) if out is None else Path(out)
    async with AsyncExitStack() as stack:
        log = stack.enter_context(await in_thread(KeptEpisodes, directory, identity, config))
        view.directory = log.directory.path
        runner = None
        if len(_usable(log.done, chosen, config)) < len(chosen) * config.eval.samples:
            if log.done:
                view.say(f"going on after {len(log.done)} episodes in {directory}")
            runner = await stack.enter_async_context(opened(log.earlier_starts))
        else:
            view.say(f"all {len(log.done)} episodes are in {directory} already, and none is run")
        stack.enter_context(settled())
        # From here on, what blocks it is a workflow.
        stack.enter_context(watch_loop())
        health = Health(recent=deque())
        seen = Seen(health, config, decode, lambda: "episodes that run (`rollout.episode_timeout_s`)")
        progress = lambda: f"{len(view.episodes)} of {view.total} episodes"  # noqa: E731
        async with AlarmWatch(lambda: alarms(seen, training=False), view.say, progress).open():
            result = await evaluate_tasks(runner, chosen, config, log=log, view=view, health=health)
            health.complete = True
        named = [replace(row, name=_task_name(chosen[row.task])) for row in result.per_task]
        result = replace(result, directory=log.directory.path, per_task=named)
        samples = await in_thread(log.finish, result)
        if replies := health.counts()["replies"]:  # none where the endpoint is elsewhere
            samples.append(f"of the last {replies} replies: {shares_text(health.to_metrics())}")
        for line in samples:
            view.say(line)
    async with open_tracking(trackers, config, log.directory.path, -1, view.say) as tracking:
        tracking.log(0, result.to_metrics())
        tracking.show(0, lambda: [episode.kept for episode in result.episodes if episode.kept])
    return result


def _name_of(sources: Sources) -> str:
    """Return the workflow's name in the log of an evaluation."""
    if sources.workflow is None:
        return sources.config.workflow
    given: Any = getattr(sources.workflow, "func", sources.workflow)  # of a partial
    own = given if hasattr(given, "__qualname__") else type(given)
    return f"{own.__module__}.{own.__qualname__}"


def _workflow_hash(sources: Sources) -> str:
    """Return a hash of the workflow's file; "": it is in none."""
    file = Path(sources.config.workflow)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12] if sources.workflow is None and file.is_file() else ""


def _task_name(task: Task) -> str:
    """Return the id of a task, or the beginning and the end of its prompt; "": it has neither."""
    text = next((one_line(task[key], 10_000) for key in NAMING_FIELDS if task.get(key) not in (None, "")), "")
    return text if len(text) <= 60 else f"{text[:28]} … {text[-28:]}"


@asynccontextmanager
async def _remote(
    config: RunConfig, workflow: Workflow, base_url: str, api_key: str, _earlier_starts: int
) -> AsyncIterator[Runner]:
    """Yield a runner whose episodes ask an endpoint elsewhere."""
    async with (
        open_run_sandboxes(config) as sandboxes,
        remote_runner(
            workflow,
            base_url=base_url,
            api_key=api_key,
            model=config.model.path,
            timeout_s=config.rollout.episode_timeout_s,
            sandboxes=sandboxes,
        ) as runner,
    ):
        yield runner


@asynccontextmanager
async def _served(
    config: RunConfig, workflow: Workflow, chat_format: ChatFormat, view: EvaluationView, earlier_starts: int
) -> AsyncIterator[Runner]:
    """Serve the model of the configuration, and yield a runner whose episodes ask it."""
    for lacking in await in_thread(lambda: list(shortages(config.rollout.max_concurrent))):
        view.say(lacking)
    begins = "asking the engine at `engine.urls`" if config.engine.urls else "starting the engine"
    view.say(f"{begins}; {chat_format.summary}")
    async with (
        scratch_directory("agentrl-rollout-", kept_after=ERRORS_WITH_A_LOG) as logs,
        open_hosts(config) as open_host,
        # By the same seed, a start would sample what an earlier one did.
        open_engine(config, logs=logs, seed=config.seed + earlier_starts, open_host=open_host) as engine,
        open_rollout(
            config, workflow, engine, chat_format=chat_format, logs=logs, say=view.say, open_host=open_host
        ) as runner,
    ):
        yield runner


async def evaluate_tasks(
    runner: Runner | None,
    tasks: Sequence[Task],
    config: RunConfig,
    *,
    log: KeptEpisodes | None = None,
    view: EvaluationView | None = None,
    health: Health | None = None,
) -> Evaluation:
    """Run every task `eval.samples` times on a runner that is open.

    Args:
        runner: Runs the episodes; None: the log has them all.
        tasks: The tasks.
        config: `eval`, the bound of replies, and the seed that those of the episodes follow from.
        log: Keeps the episodes. Those that it has are not run again.
        view: What shows the progress; None: nothing does.
        health: Counts what the episodes do.

    Returns:
        The figures and the episodes, those that the log had included.
    """
    view, options = view or EvaluationView(), config.eval
    sampling = SamplingDefaults(temperature=options.temperature, max_tokens=config.rollout.max_tokens)
    episodes = _usable(log.done if log else [], tasks, config)
    slots = anyio.Semaphore(config.rollout.max_concurrent)
    view.begin(len(tasks) * options.samples, list(episodes.values()))

    async def one(task: int, episode_index: int) -> None:
        assert runner is not None
        async with slots:
            own_seed = episode_seed(config.seed, task, episode_index)
            outcome = await runner.run(tasks[task], own_seed, defaults=sampling)
            if health is not None:
                health.attempt_ended(outcome, 0)
            if log is None:
                episode = evaluated_episode(task, episode_index, outcome)
            else:
                episode = await in_thread(log.add, task, episode_index, own_seed, outcome)
        episodes[task, episode_index] = episode
        view.on_episode(episode)

    missing = [(t, s) for t in range(len(tasks)) for s in range(options.samples) if (t, s) not in episodes]
    async with anyio.create_task_group() as group:
        for task, episode_index in missing:
            group.start_soon(one, task, episode_index)
    return summarise([episodes[key] for key in sorted(episodes)], options.pass_reward)


def _usable(
    done: Sequence[EvaluatedEpisode], tasks: Sequence[Task], config: RunConfig
) -> dict[tuple[int, int], EvaluatedEpisode]:
    """Return those of earlier starts that this evaluation has too, by task and episode index: it may have fewer tasks or samples."""
    samples = config.eval.samples
    return {(e.task, e.episode_index): e for e in done if e.task < len(tasks) and e.episode_index < samples}
