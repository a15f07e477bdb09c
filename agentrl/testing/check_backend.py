"""`check_backend`: the contract of `agentrl.sandboxes.Backend`, as a program that anyone runs on a backend of their own."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio

from agentrl.errors import SandboxError, SandboxLostError, one_line
from agentrl.sandboxes import Backend, EndReason, Sandbox, SandboxSpec
from agentrl.sandboxes.choose import choose_backend, start_sandbox
from agentrl.sandboxes.limit_check import ATTEMPTS, LIMITS, Attempt
from agentrl.sandboxes.seams import DEFAULT_IMAGE, Link
from agentrl.testing.clause import require, try_cases
from agentrl.testing.problems import Problems

_LOOK = """
import os
def command(pid):
    try: return open("/proc/" + pid + "/cmdline", "rb").read()
    except OSError: return b""
left = [folder for folder in {folders} if "left" in os.listdir(folder) or "secret" in os.listdir(folder)]
print(left, any({name!r}.encode() in command(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()))
"""
END_S = 30.0
"""How long the end of a context may take."""
LOSS_S = 10.0
"""How long the news of a loss may take."""
OF_THE_FENCE = ("network = false", "read-only root", "no privileges", "what nothing counts")
"""Limits that a backend keeps, and `sandbox.isolates` tells of. The others are held in the sandbox, by agentrl's own processes."""
TRIED = (*OF_THE_FENCE, "timeout_s = 1", "processes = 16", "file_mb = 8", "open_files = 32", "output_mb = 1")
MEMORY = "hoards, 1 MB at a time"


def is_tried(attempt: Attempt) -> bool:
    """Return whether the contract has a program go against this limit."""
    return attempt.limit in TRIED or attempt.does == MEMORY


async def check_backend(
    backend: str | Backend,
    /,
    *,
    image: str = DEFAULT_IMAGE,
    many: int = 4,
    loses: Callable[[Sandbox], Awaitable[None]] | None = None,
    timeout_s: float = 120.0,
    told_holes: tuple[str, ...] = (),
    alive: Callable[[], Awaitable[int]] | None = None,
) -> None:
    """Use sandboxes of a backend in every way that agentrl does, and raise what they do against its contract.

    Programs run and are talked to, large inputs and files go in and out, limits hold, a reset leaves nothing of the user before, many
    sandboxes work at once, one that is lost says so, and each is gone when its context is left, by an exception or a cancellation too.

    Args:
        backend: A `Backend`, or the name of one.
        image: With a `python3` of 3.10 or later.
        many: Sandboxes that are open at the same time.
        loses: Takes a sandbox down as its service could; without it, its first process is killed from inside, where a program may.
        timeout_s: Bound of each case.
        told_holes: Limits (`agentrl.sandboxes.limit_check.ATTEMPTS` has their names) that do not hold, as your `isolates` and `holes()` tell; they are
            not tried. "files": what is outside the user's folder is not emptied by a reset.
        alive: Counts the sandboxes that the service has. With it, what is left there after all is a problem.

    Raises:
        CheckFailedError: Something is against the contract. The message lists every problem with what the contract says.
        SandboxError: The backend does not work here at all.
        ConfigError: There is no backend of that name.
    """
    spec = SandboxSpec(image=image, limits=LIMITS)
    chosen = await choose_backend(backend, spec)
    contract = _Contract(chosen, spec, many, loses, told_holes)
    before = 0 if alive is None else await alive()
    problems = Problems(f"the backend {chosen.name}")
    await try_cases(
        contract.cases(),
        problems,
        timeout_s=timeout_s,
        ends="{name}: everything ends, whatever happens meanwhile",
        raises="{name}: nothing of this raises",
    )
    if alive is not None and (left := await alive() - before) > 0:
        problems.add(
            f"{left} sandboxes are left at the service",
            "start() removes its sandbox from the service, however its block ends",
        )
    problems.raise_any()


@dataclass(frozen=True)
class _Contract:
    backend: Backend
    spec: SandboxSpec
    many: int
    loses: Callable[[Sandbox], Awaitable[None]] | None
    told_holes: tuple[str, ...]

    def cases(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.it_says_what_it_isolates,
            self.programs_run_and_files_go_in_and_out,
            self.a_program_is_talked_to,
            self.large_data_arrives_whole,
            self.limits_hold,
            self.a_reset_leaves_nothing_of_the_user_before,
            self.many_at_once_are_apart,
            self.a_loss_is_told,
            self.a_sandbox_ends_with_its_context,
            self.a_cancellation_ends_a_sandbox,
            self.prepare_leaves_living_sandboxes_alone,
        ]

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        async with start_sandbox(self.backend, self.spec) as sandbox:
            yield sandbox

    async def it_says_what_it_isolates(self) -> None:
        lines = self.backend.isolates
        wanted = {"files", "processes", "network", "memory", "cpu", "privileges", "system calls"}
        lacking = sorted(wanted - {what for what, text in lines.items() if isinstance(text, str) and text})
        require(
            not lacking,
            f"isolates has no line for {', '.join(lacking)}",
            "isolates says of each what keeps it apart, or NOTHING",
        )

    async def programs_run_and_files_go_in_and_out(self) -> None:
        async with self.sandbox() as sandbox:
            done = await sandbox.run(
                ["sh", "-c", "cat; pwd; echo $A; echo oh >&2; exit 3"], stdin=b"hi\n", env={"A": "b c"}
            )
            said = (done.end_reason, done.exit_code, done.stdout, done.stderr)
            wanted = (EndReason.EXIT, 3, f"hi\n{sandbox.work}\nb c\n".encode(), b"oh\n")
            remedy = "exit codes, both outputs, the input, variables and the folder of a run are those of the program, byte by byte"
            require(said == wanted, f"a run came to {said}, not {wanted}", remedy)
            done = await sandbox.run(["sh", "-c", "kill -SEGV $$"])
            require(
                (done.end_reason, done.signal) == (EndReason.SIGNAL, 11),
                f"a program that signal 11 ended was reported as {done}",
                remedy,
            )
            done = await sandbox.run_python(code="import sys; print(input(), sys.version_info >= (3, 10))", stdin=b"x")
            require(
                done.stdout == b"x True\n",
                f"Python said {done.stdout + done.stderr!r}",
                "an image has a python3 of 3.10 or later",
            )
            await sandbox.write("deep/a.bin", bytes(range(256)))
            found = await sandbox.read("deep/a.bin")
            require(
                found == bytes(range(256)), "a file came back changed", "files are bytes, and come back as they went"
            )
            snapshot = await sandbox.snapshot()
            await sandbox.clear()
            await sandbox.restore(snapshot)
            require(
                await sandbox.read("deep/a.bin") == found,
                "a snapshot came back changed",
                "snapshots come back as they were",
            )

    async def a_program_is_talked_to(self) -> None:
        doubles = ["python3", "-u", "-c", "while True: print(int(input()) * 2)"]
        remedy = "send() and receive() carry bytes at once, in order; an input that ends is seen by the program"
        async with self.sandbox() as sandbox, await sandbox.start(doubles) as process:
            for number in (1, 21, 10**30):
                await process.send(b"%d\n" % number)
                line = await process.read_line()
                require(line == b"%d\n" % (2 * number), f"a program that was told {number} answered {line!r}", remedy)
            await process.end_input()
            require(await process.read_line() is None, "a program that ends went on to say something", remedy)
            done = await process.wait()
            ended = done.exit_code == 1 and b"EOFError" in done.stderr
            require(ended, f"the end of a program's input came to {done}", remedy)

    async def large_data_arrives_whole(self) -> None:
        data = bytes(range(256)) * 8192
        async with self.sandbox() as sandbox:
            done = await sandbox.run(["cat"], stdin=data, limits=LIMITS.but(timeout_s=30, output_mb=4))
            require(
                done.stdout == data,
                f"of 2 MB with every byte, {len(done.stdout)} bytes came back, {_first_change(done.stdout, data)}",
                "send() sends all of it, and receive() changes, drops and reorders no byte",
            )

    async def limits_hold(self) -> None:
        tried = [one for one in ATTEMPTS if is_tried(one) and one.limit not in self.told_holes]
        async with self.sandbox() as sandbox:
            for attempt in tried:
                await self._limit_holds(sandbox, attempt)

    async def _limit_holds(self, sandbox: Sandbox, attempt: Attempt) -> None:
        await sandbox.clear()
        done = await sandbox.run_python(code=attempt.code.replace("/sandbox", sandbox.work), limits=attempt.limits)
        said = f"{attempt.limit}: a program that {attempt.does} came to {done.end_reason}, {one_line((done.stdout + done.stderr)[-200:].decode(errors='replace'))}"
        require(
            attempt.holds(done), said, f"{attempt.limit} holds, or told_holes has it, and isolates and holes() say so"
        )

    async def a_reset_leaves_nothing_of_the_user_before(self) -> None:
        async with self.sandbox() as sandbox:
            await sandbox.write("secret", "of somebody else")
            folders = [sandbox.work] if "files" in self.told_holes else [sandbox.work, "/tmp", "/dev/shm"]  # noqa: S108
            await sandbox.run(["sh", "-c", 'for folder; do echo x > "$folder/left"; done', "sh", *folders])
            name = f"1000.{secrets.randbelow(10**9):09}"
            await sandbox.start(["sleep", name], limits=LIMITS.but(timeout_s=600))
            await sandbox.reset()
            left = (await sandbox.run_python(code=_LOOK.format(folders=folders, name=name))).stdout.decode().strip()
            require(
                left == "[] False",
                f"after a reset there is {left}",
                "a reset ends every program and empties every folder that a user can write to",
            )

    async def many_at_once_are_apart(self) -> None:
        answers: Counter[bytes] = Counter()

        async def use(number: int) -> None:
            async with self.sandbox() as sandbox:
                await sandbox.write("who", str(number))
                await everybody(number)
                answers[(await sandbox.run(["sh", "-c", "cat who"])).stdout] += 1

        waiting: set[int] = set()
        open_now = anyio.Event()

        async def everybody(number: int) -> None:
            waiting.add(number)
            if len(waiting) == self.many:
                open_now.set()
            await open_now.wait()

        async with anyio.create_task_group() as users:
            for number in range(self.many):
                users.start_soon(use, number)
        wanted = Counter(str(number).encode() for number in range(self.many))
        require(
            answers == wanted,
            f"{self.many} sandboxes that each wrote a file of one name read {dict(answers)}",
            "each start() gives a sandbox of its own",
        )

    async def a_loss_is_told(self) -> None:
        # Where a container or a virtual machine of a service is the fence, its programs are of the same user as its first process, their parent.
        kill = "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(0.5)"
        sleep = "import time\ntime.sleep(1000)"
        limits = LIMITS.but(timeout_s=END_S)
        async with self.sandbox() as sandbox, anyio.create_task_group() as others:
            if (loses := self.loses) is not None:

                async def lose() -> None:
                    await loses(sandbox)

                others.start_soon(lose)
            started = time.monotonic()
            with suppress(SandboxLostError):
                await sandbox.run_python(code=kill if self.loses is None else sleep, limits=limits)
            lasted = time.monotonic() - started
            still_there = self.loses is None and sandbox.lost is None  # no program of this sandbox can take it down
            problem = f"a sandbox that was taken down said nothing for {lasted:.0f} s"
            require(
                still_there or lasted < LOSS_S, problem, "receive() raises SandboxLostError when the program is gone"
            )

    async def a_sandbox_ends_with_its_context(self) -> None:
        links: list[Link] = []
        came_out: BaseException | None = None
        try:
            async with self.sandbox() as sandbox:
                links.append(sandbox._link)
                raise KeyError("from the block")
        except Exception as error:
            came_out = error
        problem = f"a KeyError of the block came out as {type(came_out).__name__}"
        require(isinstance(came_out, KeyError), problem, "start() lets an exception of its block through as itself")
        await self._is_over(links[0], "left by an exception")

    async def _is_over(self, link: Link, how: str) -> None:
        try:
            with anyio.fail_after(END_S):
                while True:
                    await link.receive()
        except SandboxError:
            return
        except TimeoutError:
            require(
                False,
                f"a sandbox whose context was {how} is still there after {END_S:g} s",
                "at the end of its context a sandbox is destroyed, and its link says SandboxLostError",
            )

    async def a_cancellation_ends_a_sandbox(self) -> None:
        links: list[Link] = []
        with anyio.CancelScope() as scope:
            async with self.sandbox() as sandbox:
                links.append(sandbox._link)
                scope.cancel()
                await sandbox.run(["sleep", "1000"])
        require(
            scope.cancelled_caught and len(links) == 1,
            "a cancellation was swallowed",
            "start() lets a cancellation through, after its clean-up in a shielded scope",
        )
        await self._is_over(links[0], "cancelled")

    async def prepare_leaves_living_sandboxes_alone(self) -> None:
        async with self.sandbox() as sandbox:
            await self.backend.prepare(self.spec)
            async with self.sandbox() as other:
                both = [(await one.run(["echo", "fine"])).stdout for one in (sandbox, other)]
        require(
            both == [b"fine\n"] * 2,
            f"after prepare() sandboxes said {both}",
            "prepare() removes what a dead process left, and nothing else",
        )


def _first_change(got: bytes, wanted: bytes) -> str:
    at = next((n for n, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    return f"other than they went from byte {at} on"
