"""`agentrl eval`: open what an evaluation needs, run it, and print what came of it."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from agentrl.cli.terminal import show_evaluation
from agentrl.concurrency.loop_watchdog import watch_loop
from agentrl.concurrency.threads import in_thread
from agentrl.config import RunConfig
from agentrl.engine.launch import check_engine, open_engine
from agentrl.errors import ConfigError
from agentrl.evaluation.endpoint import check_endpoint
from agentrl.evaluation.evaluate import EvaluationLog, evaluate
from agentrl.machine.garbage import settled
from agentrl.machine.privacy import without_secrets
from agentrl.machine.process_limits import shortages
from agentrl.proxy import SamplingDefaults
from agentrl.rollout.episode_parts import open_run_sandboxes
from agentrl.rollout.open_runner import chat_format_of, check_for_workers, open_runner
from agentrl.rollout.run_episode import Runner, remote_runner
from agentrl.rollout.tasks import TaskList, fingerprint, finite_tasks
from agentrl.rollout.workflow import load_workflow
from agentrl.run.run_directory import check_model
from agentrl.run.serve import check_address


async def run_evaluation(
    config: RunConfig, *, base_url: str | None, api_key: str, out: Path | None, as_json: bool
) -> int:
    """Evaluate the workflow of `config` and print the result. Returns the exit code: 1 when every episode failed.

    Args:
        config: with `workflow`, `tasks` and `model.path`.
        base_url: an OpenAI-compatible endpoint, for which `model.path` is a name; None: the model is served here.
        api_key: the endpoint's.
        out: file of JSON lines, one an episode; what it holds already is not run again.
        as_json: print everything as JSON, and no table.

    Raises:
        UsageError: The input cannot be used. Nothing has been started then.
        AgentRLError: The evaluation cannot go on.
    """
    workflow, tasks = load_workflow(Path(config.workflow)), finite_tasks(config.tasks, config.eval.limit)
    timeout_s = config.rollout.episode_timeout_s
    async with AsyncExitStack() as stack:
        log: EvaluationLog | None = None
        if out:
            identity = {
                "workflow": config.workflow,
                "tasks": fingerprint(tasks),
                "model": config.model.path,
                "base_url": base_url and without_secrets(base_url),
                "temperature": config.eval.temperature,
                "seed": config.seed,
            }
            log = stack.enter_context(EvaluationLog(out, identity))
            if log.done:
                print(f"going on after {len(log.done)} episodes in {out}", file=sys.stderr)
        runner: Runner
        if base_url:
            if config.rollout.workers:
                raise ConfigError(
                    "rollout.workers runs workflows on the model that is served here; leave --base-url out, or it"
                )
            await check_endpoint(base_url)
            sandboxes = await stack.enter_async_context(open_run_sandboxes(config))
            runner = await stack.enter_async_context(
                remote_runner(
                    workflow,
                    base_url=base_url,
                    api_key=api_key,
                    model=config.model.path,
                    timeout_s=timeout_s,
                    cancel_timeout_s=config.rollout.cancel_timeout_s,
                    sandboxes=sandboxes,
                )
            )
        else:
            await in_thread(check_model, config)
            await in_thread(check_engine, config.engine)
            check_address(config.proxy.host, config.proxy.port)
            if config.rollout.workers:
                check_for_workers(None, TaskList(tasks), [])
            for lacking in shortages(config.eval.max_concurrent, 0 if config.engine.urls else config.engine.servers):
                print(lacking, file=sys.stderr)
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentrl-eval-")))
            model = config.model
            chat_format = await chat_format_of(model)
            engine = await stack.enter_async_context(
                open_engine(config.model.path, config.engine, log=scratch / "engine.log", seed=config.seed)
            )
            runner = await stack.enter_async_context(
                open_runner(
                    config,
                    workflow,
                    engine,
                    chat_format=chat_format,
                    logs=scratch,
                    say=partial(print, file=sys.stderr),
                )
            )
            defaults = SamplingDefaults(temperature=config.eval.temperature, max_tokens=config.rollout.max_tokens)
            runner = runner.with_defaults(defaults)
        stack.enter_context(settled())
        # From here on, what blocks it is a workflow.
        stack.enter_context(watch_loop(interrupt_after_s=config.rollout.hang_timeout_s))
        result = await evaluate(
            runner,
            tasks,
            config.eval,
            seed=config.seed,
            done=log.done if log else (),
            on_episode=log.add if log else None,
        )
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        show_evaluation(result)
    return 0 if result.failed < result.episodes else 1
