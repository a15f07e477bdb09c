"""`docker` in threads or aiodocker: starting containers, and talking to them over their attached streams.

pip install docker aiodocker && python benchmarks/docker_sdks.py      needs a Docker engine with the image agentrl/sandbox
python benchmarks/docker_sdks.py --sdks docker --containers 2         one of them, and fewer containers
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib import import_module
from typing import Any

AT_ONCE, MESSAGES = 4, 300
ECHO = "import sys\nfor line in sys.stdin:\n    print(line, end='', flush=True)"
CONFIG: dict[str, Any] = {
    "Image": "agentrl/sandbox",
    "Cmd": ["python3", "-I", "-S", "-c", ECHO],
    "OpenStdin": True,
    "StdinOnce": True,
    "HostConfig": {"NetworkMode": "none", "AutoRemove": True, "LogConfig": {"Type": "none"}},
}

Times = tuple[float, float, float]
"""Seconds to the first answer, of one message there and back, and to remove."""


async def with_aiodocker(containers: int) -> list[Times]:
    import aiodocker

    client = aiodocker.Docker()
    slots = asyncio.Semaphore(AT_ONCE)

    async def one() -> Times:
        async with slots:
            started = time.perf_counter()
            container = await client.containers.create(CONFIG)
            stream = container.attach(stdin=True, stdout=True, stderr=False)
            await stream._init()  # its attach is lazy, and must come before the start
            await container.start()
            await stream.write_in(b"x\n")
            await stream.read_out()
            first = time.perf_counter() - started
            trips = []
            for _ in range(MESSAGES):
                sent = time.perf_counter()
                await stream.write_in(b"x\n")
                await stream.read_out()
                trips.append(time.perf_counter() - sent)
            removed = time.perf_counter()
            await container.delete(force=True)
            removal = time.perf_counter() - removed
            await stream.close()
            return first, statistics.median(trips), removal

    try:
        return await asyncio.gather(*(one() for _ in range(containers)))
    finally:
        await client.close()


def with_docker(containers: int) -> list[Times]:
    import docker

    with closing(docker.from_env()) as client:

        def one(_: int) -> Times:
            api = client.api
            started = time.perf_counter()
            host = api.create_host_config(
                network_mode="none", auto_remove=True, log_config=docker.types.LogConfig(type="none")
            )
            created = api.create_container(CONFIG["Image"], CONFIG["Cmd"], stdin_open=True, host_config=host)
            stream = api.attach_socket(created["Id"], params={"stdin": 1, "stdout": 1, "stream": 1})._sock
            api.start(created["Id"])
            stream.sendall(b"x\n")
            stream.recv(1000)
            first = time.perf_counter() - started
            trips = []
            for _ in range(MESSAGES):
                sent = time.perf_counter()
                stream.sendall(b"x\n")
                stream.recv(1000)
                trips.append(time.perf_counter() - sent)
            removed = time.perf_counter()
            api.remove_container(created["Id"], force=True)
            return first, statistics.median(trips), time.perf_counter() - removed

        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(one, range(containers)))


def show(name: str, measure: Any) -> None:
    cpu = time.process_time()
    times = measure()
    first, trip, removal = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    cpu_s = time.process_time() - cpu
    print(
        f"{name:10} first answer {first:6.1f} ms   there and back {trip:.3f} ms   removal {removal:5.1f} ms   CPU {cpu_s:.2f} s"
    )


SDKS: dict[str, Callable[[int], list[Times]]] = {
    "docker": with_docker,
    "aiodocker": lambda containers: asyncio.run(with_aiodocker(containers)),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sdks", nargs="+", default=list(SDKS), choices=list(SDKS))
    parser.add_argument("--containers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    for name in options.sdks:
        import_module(name)  # not to be part of what is measured
    for _ in range(options.rounds):
        for name in options.sdks:
            show(name, lambda name=name: SDKS[name](options.containers))
