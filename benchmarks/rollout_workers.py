"""Episodes a second with the workflow in the main process, and in one and two worker processes.

A server in a process of its own answers at once, so that the rest is measured: proxy, client, channel and record. An episode is three calls of 32
tokens; `--think-ms` adds computation in Python to each, as a workflow that scores or parses has it.

    python benchmarks/rollout_workers.py --think-ms 10
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
from aiohttp import web

from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.models import NANO
from agentrl.rollout.open_runner import open_rollout
from agentrl.rollout.workflow import load_workflow

WORKFLOW = """
import time

async def run(episode):
    messages = [{"role": "user", "content": "1 + 1 ="}]
    for _ in range(3):
        reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
        messages += [{"role": "assistant", "content": reply.choices[0].message.content}, {"role": "user", "content": "+ 1 ="}]
        until = time.perf_counter() + episode.task["think_ms"] / 1000
        while time.perf_counter() < until:
            pass
    return 1.0
"""
TOKENS = 32


async def generate(http: web.Request) -> web.StreamResponse:
    """Answer at once, always the same, in SGLang's words."""
    body = json.loads(await http.read())
    count = body["sampling_params"]["max_new_tokens"] if not body.get("stream") else TOKENS
    state = {
        "output_ids": [25] * count,
        "meta_info": {
            "finish_reason": {"type": "length", "length": count},
            "prompt_tokens": len(body["input_ids"]),
            "weight_versions": [{"version": "0", "start": 0, "end": count}],
            "output_token_logprobs": [[-0.5, 25, None]] * count,
        },
    }
    if not body.get("stream"):
        return web.json_response(state)
    return web.Response(body=b"data: " + json.dumps(state).encode() + b"\n\n", content_type="text/event-stream")


async def describe(http: web.Request) -> web.Response:
    """Say what a server must say of itself."""
    return web.json_response({"incremental_streaming_output": True, "weight_version": "0"})


def serve() -> None:
    """Be the server, until standard input closes."""
    app = web.Application()
    app.add_routes([web.get(path, describe) for path in ("/server_info", "/model_info", "/health")])
    app.add_routes([web.post("/generate", generate), web.post("/abort_request", describe)])
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        web.run_app(app, sock=listener, print=None, access_log=None)


@contextmanager
def instant_server() -> Iterator[str]:
    """Run a server that answers at once in a process of its own, for the length of the context."""
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


async def episodes_per_s(workers: int, args: argparse.Namespace, directory: Path, url: str) -> tuple[float, float]:
    """(episodes a second, CPU milliseconds of this process for each) of one setting."""
    workflow = directory / "workflow.py"
    values = {"workflow": str(workflow), "model": {"path": str(NANO)}, "rollout": {"workers": workers}}
    config = RunConfig.model_validate(values)
    slots = anyio.Semaphore(args.concurrent)
    async with (
        sglang_engine([url]) as engine,
        open_rollout(config, load_workflow(workflow), engine, logs=directory, say=print) as runner,
    ):

        async def one(seed: int) -> None:
            async with slots:
                outcome = await runner.run({"think_ms": args.think_ms}, seed)
            assert outcome.reason == "finished", outcome.error

        async def many(count: int) -> None:
            async with anyio.create_task_group() as group:
                for seed in range(count):
                    group.start_soon(one, seed)

        await many(4 * max(1, workers))  # what is imported on first use
        started, used = time.perf_counter(), time.process_time()
        await many(args.episodes)
        cpu_ms = 1000 * (time.process_time() - used) / args.episodes
        return args.episodes / (time.perf_counter() - started), cpu_ms


async def main(args: argparse.Namespace) -> None:
    """Measure each setting in turn, several times."""
    found: dict[int, list[tuple[float, float]]] = {0: [], 1: [], 2: []}
    with instant_server() as url, tempfile.TemporaryDirectory(prefix="agentrl-benchmark-") as directory:
        (Path(directory) / "workflow.py").write_text(WORKFLOW)
        for _ in range(args.rounds):
            for workers, measured in found.items():
                measured.append(await episodes_per_s(workers, args, Path(directory), url))
    for workers, measured in found.items():
        shown = ", ".join(f"{speed:.0f}/s with {cpu_ms:.1f} ms" for speed, cpu_ms in measured)
        speed, cpu_ms = (statistics.median(values) for values in zip(*measured, strict=True))
        print(
            f"rollout.workers = {workers}: {speed:.0f} episodes/s, {cpu_ms:.1f} ms of the main process's CPU for each (rounds: {shown})"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--concurrent", type=int, default=32)
    parser.add_argument("--think-ms", type=float, default=0.0, help="computation after each call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    else:
        anyio.run(main, arguments)
