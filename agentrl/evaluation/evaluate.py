"""Evaluation: the same workflow, every task k times, nothing trained.

evaluate(config) ─► open_engine ─► open_rollout ─► runner ─► evaluate_tasks ─► Evaluation
                    engine, proxy, sandboxes
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import anyio

from agentrl.config.run import RunConfig, check_is_config, check_set, on_cluster
from agentrl.episode import Task
from agentrl.errors import ConfigError, UsageError, one_line
from agentrl.evaluation.directory import keep_episodes, new_directory
from agentrl.evaluation.figures import Evaluation, summarise
from agentrl.evaluation.progress import EvaluationView, print_note
from agentrl.proxy import ChatFormat, SamplingDefaults
from agentrl.rollout.alarms import AlarmWatch, Health, Seen, alarms, shares_text
from agentrl.rollout.check_start import check_endpoint, check_start, check_tasks, with_chat_format
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.open_runner import ERRORS_WITH_A_LOG, Runner, open_engine, open_hosts, open_rollout
from agentrl.rollout.run_episode import remote_runner
from agentrl.rollout.workflow import GivenTasks, GivenWorkflow, Sources, Workflow, sources_of
from agentrl.store.outcome import Outcome
from agentrl.store.read_episode import RunEpisode, sample_replies
from agentrl.system.failure_text import without_secrets
from agentrl.system.files import scratch_directory, write_whole
from agentrl.system.loop_watchdog import watch_loop
from agentrl.system.tasks import in_thread, in_users_thread
from agentrl.system.this_process import settled, shortages
from agentrl.tasks.curriculum import open_run_tasks
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
    chat_format: ChatFormat | None = None
    run, config, view = await in_users_thread(sources.load_workflow), sources.config, view or EvaluationView(print_note)
    check_set(config, "model.path")
    if sources.tasks is None and not (config.tasks or config.eval.tasks or config.data.eval_share):
        raise UsageError("`data.sources` mixes tasks of a training run; name those of an evaluation with `tasks`")
    if sources.tasks is None and config.data.eval_share and not config.eval.tasks:
        unlimited = config.model_copy(update={"eval": config.eval.model_copy(update={"limit": None})})
        _, held_out = await in_users_thread(open_run_tasks, unlimited, None, task_type_of(run))
        chosen = held_out[: config.eval.limit]
        first = "" if len(chosen) == len(held_out) else f"first {len(chosen)} of "
        named = f"the {first}{len(held_out)} held-out ones"
    else:
        given = sources.tasks if sources.tasks is not None else config.eval.tasks or config.tasks
        chosen = await in_users_thread(list_tasks, given, config.eval.limit, task_type_of(run), config.data)
        named = f"{len(chosen)} of {given}" if isinstance(given, str) else ""
    name, workflow_hash = await in_thread(_workflow_of, sources)
    identity = {
        "workflow": name,
        "tasks": fingerprint(chosen),
        "model": config.model.path,
        "renderer": [config.model.renderer, config.model.renderer_options],
        "base_url": base_url and without_secrets(base_url),
        "workflow_sha256": workflow_hash,
        "temperature": config.eval.temperature,
        "top_p": config.rollout.top_p,
        "max_tokens": config.rollout.max_tokens,
        "seed": config.seed,
    }
    if base_url:
        if config.rollout.workers:
            raise ConfigError(
                "`rollout.workers` runs workflows on the model that is served here; leave `base_url` out, or it"
            )
        if out is None or not await in_thread(Path(out, "store.sqlite").exists):
            await check_endpoint(base_url, api_key)  # of an evaluation that goes on, nothing may be left to ask it
    else:
        config, chat_format = await with_chat_format(await check_start(on_cluster(config), view.say))
    await check_tasks(config, sources.workflow, task_type_of(run), chosen)
    trackers = await in_users_thread(load_trackers, config.tracking.trackers)
    directory = await in_thread(new_directory, "evaluation") if out is None else Path(out)
    async with AsyncExitStack() as stack:
        log = await in_thread(stack.enter_context, keep_episodes(directory, identity, config))
        view.directory = log.path
        if named:
            view.say(f"the tasks are {named}")
        done = {
            (e.task, e.episode_index): e
            for e in await in_thread(log.finished)
            if e.task < len(chosen) and e.episode_index < config.eval.samples  # an earlier start may have had more
        }
        runner = None
        if len(done) == len(chosen) * config.eval.samples:
            view.say(f"all {len(done)} episodes are in {directory} already, and none is run")
        else:
            if done:
                view.say(f"going on after {len(done)} episodes in {directory}")
            if chat_format is None:
                runner = await _remote_runner(stack, config, run, base_url, api_key)
            else:
                # By the same seed, a start would sample what an earlier one did.
                seed = config.seed + log.store.restart - 1
                runner = await _own_runner(stack, config, run, chat_format, view.say, seed)
        stack.enter_context(settled())
        # From here on, what blocks it is a workflow.
        stack.enter_context(watch_loop())
        health = Health()
        decode = chat_format.decode if chat_format else str
        seen = Seen(health, config, decode, lambda: "episodes that run (`rollout.episode_timeout_s`)")
        async with AlarmWatch(lambda: alarms(seen, training=False), view.say, lambda: view.progress).open():
            result = await evaluate_tasks(runner, chosen, config, done=done, keep=log.add, view=view, health=health)
            health.complete = True
        result = replace(result, directory=log.path)
        summary = json.dumps(result.to_json(per_task=False)) + "\n"
        await in_thread(write_whole, log.path / "summary.json", summary)
        for line in await in_thread(lambda: list(sample_replies(result.episodes))):
            view.say(line)
        if replies := health.counts()["replies"]:  # none where the endpoint is elsewhere
            view.say(f"of the last {replies} replies: {shares_text(health.to_metrics())}")
    async with open_tracking(trackers, config, log.path, -1, view.say) as tracking:
        tracking.log(0, result.to_metrics())
        tracking.show(0, lambda: result.episodes)
    return result


def _workflow_of(sources: Sources) -> tuple[str, str]:
    """Return the workflow's name, and a hash of its file; "": it is in none."""
    if sources.workflow is None:
        path = sources.config.workflow
        return path, hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
    given: Any = getattr(sources.workflow, "func", sources.workflow)  # of a partial
    own = given if hasattr(given, "__qualname__") else type(given)
    return f"{own.__module__}.{own.__qualname__}", ""


def _task_name(task: Task) -> str:
    """Return the id of a task, or the beginning and the end of its prompt or its first text; "": it has none."""
    named = {name: task.get(name) for name in NAMING_FIELDS}
    texts = {name: value for name, value in task.items() if isinstance(value, str)}
    text = one_line(next((value for value in {**named, **texts}.values() if value not in (None, "")), ""), 10_000)
    return text if len(text) <= 60 else f"{text[:28]} … {text[-28:]}"


async def _remote_runner(
    stack: AsyncExitStack, config: RunConfig, workflow: Workflow, base_url: str | None, api_key: str
) -> Runner:
    """Return a runner whose episodes ask an endpoint elsewhere."""
    assert base_url is not None
    sandboxes, timeout_s = await stack.enter_async_context(open_run_sandboxes(config)), config.rollout.episode_timeout_s
    runner = remote_runner(
        workflow, base_url=base_url, api_key=api_key, model=config.model.path, timeout_s=timeout_s, sandboxes=sandboxes
    )
    return await stack.enter_async_context(runner)


async def _own_runner(
    stack: AsyncExitStack,
    config: RunConfig,
    workflow: Workflow,
    chat_format: ChatFormat,
    say: Callable[[str], None],
    seed: int,
) -> Runner:
    """Serve the model of the configuration, and return a runner whose episodes ask it."""
    for lacking in await in_thread(lambda: list(shortages(config.rollout.max_concurrent))):
        say(lacking)
    begins = "asking the engine at `engine.urls`" if config.engine.urls else "starting the engine"
    say(f"{begins}; {chat_format.summary}")
    logs = await stack.enter_async_context(scratch_directory("agentrl-rollout-", kept_after=ERRORS_WITH_A_LOG))
    hosts = await stack.enter_async_context(open_hosts(config))
    engine = await stack.enter_async_context(open_engine(config, logs=logs, seed=seed, open_host=hosts))
    runner = open_rollout(config, workflow, engine, chat_format=chat_format, logs=logs, say=say, open_host=hosts)
    return await stack.enter_async_context(runner)


async def evaluate_tasks(
    runner: Runner | None,
    tasks: Sequence[Task],
    config: RunConfig,
    *,
    done: Mapping[tuple[int, int], RunEpisode] | None = None,
    keep: Callable[[int, int, int, Outcome], RunEpisode] | None = None,
    view: EvaluationView | None = None,
    health: Health | None = None,
) -> Evaluation:
    """Run every task `eval.samples` times on a runner that is open.

    Args:
        runner: Runs the episodes; None: all are done.
        tasks: The tasks.
        config: `eval`, the bound of replies, and the seed that those of the episodes follow from.
        done: The episodes that need not be run, by task and episode index.
        keep: Keeps an episode, of a task, an episode index and a seed.
        view: What shows the progress; None: nothing does.
        health: Counts what the episodes do.

    Returns:
        The figures and the episodes that are kept.
    """
    view, samples = view or EvaluationView(), config.eval.samples
    sampling = SamplingDefaults(
        temperature=config.eval.temperature, top_p=config.rollout.top_p, max_tokens=config.rollout.max_tokens
    )
    episodes: dict[tuple[int, int], Outcome | RunEpisode] = {**(done or {})}
    slots = anyio.Semaphore(config.rollout.max_concurrent)
    view.begin(len(tasks) * samples, len(episodes))

    async def one(task: int, episode_index: int) -> None:
        assert runner is not None
        async with slots:
            seed = episode_seed(config.seed, task, episode_index)
            outcome = await runner.run(tasks[task], seed, defaults=sampling)
            if health is not None:
                health.attempt_ended(outcome, 0)
            kept = outcome if keep is None else await in_thread(keep, task, episode_index, seed, outcome)
        episodes[task, episode_index] = kept
        view.on_end(failed=not outcome.finished)

    wanted = [[(task, index) for index in range(samples)] for task in range(len(tasks))]
    async with anyio.create_task_group() as group:
        for task, episode_index in chain.from_iterable(wanted):
            if (task, episode_index) not in episodes:
                group.start_soon(one, task, episode_index)
    by_task = [[episodes[key] for key in keys] for keys in wanted]
    return summarise(by_task, [_task_name(task) for task in tasks], config.eval.pass_reward)
