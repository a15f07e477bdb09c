"""Serve environments of the `verifiers` library over loopback, in the Python that has it: this file imports nothing of agentrl.

stdout: the port, in one line        stdin: its end is the server's end
POST /tasks {env}                                                    ─► {"tasks": how many}
POST /episode {env, row, model, base_url, api_key, sampling}         ─► {"reward", "metrics"}
an error of the environment, with any of them                        ─► {"error"}
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from functools import cache
from typing import Any

import verifiers.v1 as vf
from aiohttp import web

_loading = asyncio.Lock()
"""Held by the request that loads tasks, so that no two load the same ones."""


def environment_of(config: str) -> Any:
    """Return a new environment; `config` is the library's `[env]` block as JSON."""
    return vf.load_environment(vf.resolve_env_config(json.loads(config)))


@cache
def load_tasks(config: str) -> list[Any]:
    """Return the tasks of an environment, which are loaded once.

    Raises:
        ValueError: They have no end.
    """
    taskset = environment_of(config).taskset
    if not taskset.bounded:
        raise ValueError("its tasks have no end; bound them by the arguments of its taskset")
    return list(taskset)


async def tasks_of(asked: dict[str, Any]) -> list[Any]:
    """Return the tasks of the environment of a request."""
    async with _loading:
        return await asyncio.to_thread(load_tasks, asked["env"])


async def count_tasks(asked: dict[str, Any]) -> dict[str, Any]:
    """Return how many tasks an environment has."""
    return {"tasks": len(await tasks_of(asked))}


async def play(asked: dict[str, Any]) -> dict[str, Any]:
    """Run one episode against the model at `base_url`, and return its reward and metrics.

    The environment is the episode's own, as the model's key is, so that no two share a client or a tool server.

    Raises:
        RuntimeError: The episode failed, or had more than one agent.
    """
    task = (await tasks_of(asked))[asked["row"]]
    env, variable = environment_of(asked["env"]), f"AGENTRL_KEY_{uuid.uuid4().hex}"
    client = vf.EvalClientConfig(base_url=asked["base_url"], api_key_var=variable)
    context = vf.ModelContext(asked["model"], client, vf.SamplingConfig(**asked["sampling"]))
    os.environ[variable] = asked["api_key"]
    try:
        async with env.serving():
            done = await env.run_episode(task, context)
    finally:
        del os.environ[variable]
    errors = [f"{error.type}: {error.message}" for one in (done, *done.traces) for error in one.errors]
    if not done.ok:
        raise RuntimeError("; ".join(errors) or "the episode is not ok")
    if len(done.traces) != 1:
        raise RuntimeError(f"it has {len(done.traces)} agents, and one can be trained")
    trace = done.traces[0]
    scores = {name: one.score for name, one in trace.rewards.items() if one is not None}
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, "metrics": {**metrics, **scores, "truncated": float(trace.is_truncated)}}


def answering(work: Any) -> Any:
    """Return a handler of requests that answers with what `work` returns, or the error that it raises."""

    async def handler(request: web.Request) -> web.Response:
        try:
            return web.json_response(await work(await request.json()))
        except Exception as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"})

    return handler


async def serve() -> None:
    """Serve until stdin ends."""
    app = web.Application()
    app.add_routes([web.post("/tasks", answering(count_tasks)), web.post("/episode", answering(play))])
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve())
