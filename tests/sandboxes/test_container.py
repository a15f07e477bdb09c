"""A container for an agent, on a real engine: what runs in it, what stays of it, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync as in_thread

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes import EndReason
from agentrl.sandboxes.backends.docker_images import ImageSource, built_image
from agentrl.sandboxes.backends.leftovers import LABEL, owner
from agentrl.sandboxes.container import Container, ContainerSpec, open_container
from agentrl.tasks.harbor import folder_digest

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("docker")]
IMAGE = "agentrl/sandbox"
OWNED = """
import anyio, sys
from agentrl.sandboxes.container import open_container
from agentrl.sandboxes.container import ContainerSpec

async def main():
    async with open_container(ContainerSpec()) as container, container.commit() as image:
        print(container.id, image, flush=True)
        await anyio.sleep(60)

anyio.run(main)
"""


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def is_there(kind: str, name: str) -> bool:
    found = subprocess.run(["docker", kind, "inspect", name], capture_output=True, timeout=60, check=False)
    return found.returncode == 0


def left() -> list[str]:
    """The containers and images of this process."""
    mine = f"label={LABEL}={owner()}"
    return [*docker("ps", "-aq", "--filter", mine).split(), *docker("images", "-aq", "--filter", mine).split()]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert left() == []


def source(folder: Path, dockerfile: str, timeout_s: float = 120.0) -> ImageSource:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    return ImageSource("own", folder, folder_digest(folder), timeout_s)


async def processes(container: Container, word: str) -> int:
    """How many of them have a command line that begins so, with dots for what stands between its words."""
    done = await container.run(["sh", "-c", f"grep -al '^{word}' /proc/[0-9]*/cmdline | wc -l"])
    return int(done.stdout)


async def test_programs_run_as_the_images_user_with_a_writable_root() -> None:
    async with open_container(ContainerSpec(env={"COLOUR": "red"}, workdir="/made/here")) as container:
        for script, options, printed in (
            ("pwd; id -u; echo $COLOUR", {}, "/made/here\n0\nred\n"),
            ("echo new > /usr/bin/new && cat /usr/bin/new", {}, "new\n"),
            (
                "pwd; echo $COLOUR$SIZE; id -u",
                {"cwd": "/usr", "env": {"SIZE": "4"}, "user": "65534"},
                "/usr\nred4\n65534\n",
            ),
            ("cat", {}, ""),
        ):
            done = await container.run(["sh", "-c", script], **options)  # type: ignore[arg-type]
            assert (done.ok, done.stdout.decode(), done.stderr) == (True, printed, b"")
        done = await container.run(["sh", "-c", "echo out; echo no >&2; exit 3"])
        assert (done.end_reason, done.exit_code, done.stdout, done.stderr) == (EndReason.EXIT, 3, b"out\n", b"no\n")
        assert (await container.run(["nowhere"])).exit_code in (126, 127)
        many = await container.run(["sh", "-c", "yes | head -c 3000000; echo end"], output_mb=1)
        assert len(many.stdout) == 2**20
        assert many.stdout.endswith(b"end\n")
        assert (await container.run(["ls", "/sys/class/net"])).stdout == b"lo\n"


async def test_an_image_is_as_its_author_meant_it(tmp_path: Path) -> None:
    user = "FROM agentrl/sandbox\nRUN mkdir /home/it && chown 1234 /home/it\nENV HOME=/home/it\nUSER 1234\nWORKDIR /home/it\n"
    image = await built_image(await in_thread(source, tmp_path / "user", user))
    assert image == await built_image(await in_thread(source, tmp_path / "user", user))
    async with open_container(ContainerSpec(image=image)) as container:
        done = await container.run(["sh", "-c", "id -u; pwd; echo $HOME; touch file && echo mine"])
        assert done.stdout == b"1234\n/home/it\n/home/it\nmine\n"


async def test_the_entrypoint_of_an_image_has_run_its_command_before_anything_else_does(tmp_path: Path) -> None:
    prepares, ends = [
        f"FROM agentrl/sandbox\nENTRYPOINT {json.dumps(['sh', '-c', f'echo begins; sleep 1; {then}', 'sh'])}\n"
        for then in ('touch /ready; exec "$@"', "exit 3")
    ]
    image = await built_image(await in_thread(source, tmp_path / "prepares", prepares))
    async with open_container(ContainerSpec(image=image)) as container:
        assert (await container.run(["ls", "/ready"])).ok
    image = await built_image(await in_thread(source, tmp_path / "ends", ends))
    with pytest.raises(SandboxLostError, match=r"has ended .*ENTRYPOINT must run the command .* printed 'begins'"):
        async with open_container(ContainerSpec(image=image)):
            pass


@pytest.mark.parametrize(
    ("dockerfile", "timeout_s", "told"),
    [
        (
            "FROM agentrl/sandbox\nRUN echo before; echo no such thing; exit 3\n",
            120.0,
            "the image of the task own: .*no such thing",
        ),
        ("FROM agentrl/sandbox\nRUN sleep 30\n", 1.0, "not built in time; raise environment.build_timeout_sec"),
    ],
)
async def test_an_image_that_is_not_built_says_why(
    tmp_path: Path, dockerfile: str, timeout_s: float, told: str
) -> None:
    with pytest.raises(SandboxError, match=told):
        await built_image(await in_thread(source, tmp_path / "it", dockerfile, timeout_s))


async def test_a_time_limit_or_a_cancellation_ends_what_a_program_started_and_nothing_else() -> None:
    async with open_container(ContainerSpec()) as container:
        await container.run(["sh", "-c", "sleep 1234 > /dev/null 2>&1 &"])
        done = await container.run(["sh", "-c", "(setsid sleep 4321 &); echo begun; sleep 4321"], timeout_s=1)
        assert (done.end_reason, done.exit_code, done.stdout) == (EndReason.TIMEOUT, None, b"begun\n")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(container.run, ["sleep", "4321"])
                while not await processes(container, "sleep.4321"):
                    pass
                scope.cancel()
        assert await processes(container, "sleep.1234") == 1
        assert await processes(container, "sleep.4321") == 0


async def test_a_started_program_has_streams_and_ends_with_its_context() -> None:
    async with open_container(ContainerSpec()) as container:
        async with container.start(
            ["sh", "-c", "setsid sleep 4321 & while read x; do echo =$x; echo + >&2; done"]
        ) as echo:
            for word in ("one", "two"):
                await echo.send(f"{word}\n".encode())
                assert await echo.read_line() == f"={word}".encode()
            assert await processes(container, "sleep.4321") == 1
        assert await processes(container, "sleep.4321") == 0


async def test_files_go_in_and_out() -> None:
    async with open_container(ContainerSpec()) as container:
        await container.write("/srv/deep/run.sh", b"#!/bin/sh\necho ran", mode=0o755)
        assert (await container.run(["/srv/deep/run.sh"])).stdout == b"ran\n"
        assert await container.read("/srv/deep/run.sh") == b"#!/bin/sh\necho ran"
        for path, told in (("/srv/nothing", "nothing"), ("/srv/deep", "is no file")):
            with pytest.raises(SandboxError, match=told):
                await container.read(path)
        await container.run(["sh", "-c", "head -c 30000000 /dev/zero > /srv/large"])
        with pytest.raises(SandboxError, match="more than 1000 bytes"):
            await container.read("/srv/large", 1000)
        changes = await container.diff()
        assert (changes["/srv"], changes["/srv/large"]) == ("changed", "added")


async def test_a_new_container_has_the_files_of_a_state_and_none_of_its_processes() -> None:
    async with open_container(ContainerSpec()) as container:
        await container.run(["sh", "-c", "echo it > /etc/it; rm /etc/hostname; sleep 1234 > /dev/null 2>&1 &"])
        async with container.commit() as image:
            async with open_container(ContainerSpec(image=image)) as again:
                assert await again.read("/etc/it") == b"it\n"
                assert await processes(again, "sleep.1234") == 0
            assert await in_thread(is_there, "image", image)
        assert not await in_thread(is_there, "image", image)


async def test_memory_is_compared_with_the_engines_machine() -> None:
    with pytest.raises(
        SandboxError, match=r"memory_mb = 4000000 is more than the .* of the engine's machine; lower it"
    ):
        async with open_container(ContainerSpec(memory_mb=4_000_000)):
            pass


async def test_a_program_that_takes_too_much_memory_is_killed_alone() -> None:
    async with open_container(ContainerSpec(memory_mb=64)) as container:
        done = await container.run(["python3", "-c", "x = b'x' * (200 << 20)"])
        assert not done.ok
        assert (await container.run(["echo", "here"])).stdout == b"here\n"


async def test_a_container_that_dies_is_lost() -> None:
    calls: tuple[Callable[[Container], Any], ...] = (
        lambda container: container.run(["true"]),
        lambda container: container.commit().__aenter__(),
    )
    async with open_container(ContainerSpec()) as container, anyio.create_task_group() as group:

        async def waits() -> None:
            with pytest.raises(SandboxLostError, match="has ended"):
                await container.run(["sleep", "60"])

        async with container.start(["cat"]) as started:
            group.start_soon(waits)
            await started.send(b"begun\n")
            assert await started.read_line() == b"begun"
            await in_thread(docker, "kill", container.id)
            with pytest.raises(SandboxLostError, match="has ended"):
                await started.read_line()
        for call in calls:
            with pytest.raises(SandboxLostError, match="has ended"):
                await call(container)


async def test_nothing_is_left_of_a_failure_or_a_cancellation() -> None:
    with pytest.raises(OSError, match="of the workflow"):
        async with open_container(ContainerSpec()) as container, container.commit():
            raise OSError("of the workflow")
    assert await in_thread(left) == []
    for moment in ("open", "run", "commit"):
        with anyio.CancelScope() as scope:
            async with open_container(ContainerSpec()) as container:
                if moment == "open":
                    scope.cancel()
                async with anyio.create_task_group() as group:
                    group.start_soon(container.run, ["sleep", "60"])
                    async with container.start(["cat"]) as started:
                        await started.send(b"begun\n")
                        await started.read_line()
                        if moment == "run":
                            scope.cancel()
                        async with container.commit():
                            scope.cancel()
                            await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert await in_thread(left) == []


def kill_one() -> list[str]:
    """Kill a process that has a container and an image; any other start, of another test too, may remove them from then on."""
    with subprocess.Popen([sys.executable, "-c", OWNED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        names = process.stdout.readline().split()
        assert [is_there(kind, name) for kind, name in zip(("container", "image"), names, strict=True)] == [True, True]
        os.kill(process.pid, signal.SIGKILL)
    return names


async def test_the_next_start_removes_what_a_killed_process_left_and_nothing_of_a_living_one() -> None:
    async with open_container(ContainerSpec()) as mine, mine.commit() as image:
        gone, gone_image = await in_thread(kill_one)
        async with open_container(ContainerSpec()):
            assert not await in_thread(is_there, "container", gone)
            assert not await in_thread(is_there, "image", gone_image)
            assert (await mine.run(["true"])).ok
            assert await in_thread(is_there, "image", image)
    assert json.loads(await in_thread(docker, "image", "inspect", IMAGE))
