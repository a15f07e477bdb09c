"""A sandbox: programs, files, resets, and what becomes of them when somebody loses patience."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.errors import AgentRLError, ConfigError, SandboxError, SandboxLostError
from agentrl.sandboxes import BackendName, EndReason, Limits, Sandbox, SandboxSpec, open_sandbox
from agentrl.sandboxes.choose import choose_backend
from tests.components import wait_until
from tests.real_sandboxes import kill_first_process

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox(backend: BackendName) -> AsyncIterator[Sandbox]:
    async with open_sandbox(backend=backend, limits=Limits(timeout_s=10)) as sandbox:
        yield sandbox


async def test_a_command_runs_to_its_end(sandbox: Sandbox) -> None:
    done = await sandbox.run(
        ["sh", "-c", "cat; echo $GREETING; pwd; echo oh >&2; exit 3"], stdin=b"hi\n", env={"GREETING": "ho"}
    )
    assert (done.end_reason, done.exit_code, done.signal) == (EndReason.EXIT, 3, None)
    assert (done.stdout, done.stderr) == (b"hi\nho\n/sandbox\n", b"oh\n")
    assert 0 < done.duration_s < 60
    assert 0 < done.cpu_s < 5
    assert 1 < done.peak_memory_bytes / 2**20 < 100
    assert not done.ok


async def test_a_framework_is_imported_once_and_for_all_who_are_forked_from_then_on(sandbox: Sandbox) -> None:
    seen = "import sys; print('_pytest.python' in sys.modules)"
    for framework, imported in ((None, b"False\n"), ("pytest", b"True\n"), (None, b"True\n")):
        async with await sandbox.start_python(seen, framework=framework) as process:
            assert (await process.wait()).stdout == imported
        await sandbox.reset()


async def test_a_run_of_python_is_like_the_interpreter_s(sandbox: Sandbox) -> None:
    """Forked from a warm interpreter or started afresh: the same output, the same exit code."""
    program = """
import atexit, os, sys, threading, time
atexit.register(lambda: print("at exit"))
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
print(__name__, sys.argv[1:], os.getcwd(), input(), sorted(k for k in globals() if k[0] != "_"))
sys.stderr.write("no newline")
import helper
print(helper.x)
sys.exit(int(sys.argv[1]))
"""
    await sandbox.write("main.py", program)
    await sandbox.write("helper.py", "x = 1\n")
    for code in ("0", "3", "300"):
        warm = await sandbox.run_python("main.py", args=[code, "b c"], stdin=b"line\n")
        cold = await sandbox.run(["python3", "main.py", code, "b c"], stdin=b"line\n")
        assert (warm.exit_code, warm.stdout, warm.stderr) == (cold.exit_code, cold.stdout, cold.stderr)
        assert warm.exit_code == int(code) % 256
        assert b"at exit" in warm.stdout


@pytest.mark.parametrize(
    "program",
    [
        "def f():\n    return 1 / 0\nf()",
        "raise SystemExit('a message')",
        "x = (",
        "import sys\nsys.excepthook = lambda *_: print('hooked')\nraise ValueError",
        "raise KeyboardInterrupt",
        "import os\nos._exit(7)",
        "print('é', flush=True)\nimport os; os.kill(os.getpid(), 15)",
        "import sys, io\nout = sys.stdout\nsys.stdout = io.StringIO()\nout.write('3')",
        "file = open('/dev/stdout', 'w')\nfile.write('3')",
        "import sys\nsys.stdout = None",
    ],
)
async def test_python_ends_like_the_interpreter(sandbox: Sandbox, program: str) -> None:
    await sandbox.write("main.py", program)
    warm = await sandbox.run_python("main.py")
    cold = await sandbox.run(["python3", "main.py"])
    assert warm.stdout == cold.stdout
    if "Interrupt" in program:  # the interpreter kills itself by the signal, after the same traceback
        assert warm.exit_code != 0
    else:
        assert (warm.end_reason, warm.exit_code, warm.signal) == (cold.end_reason, cold.exit_code, cold.signal)
        assert warm.stderr.replace(b'"/sandbox/', b'"') == cold.stderr.replace(b'"/sandbox/', b'"')


async def test_a_signal_a_missing_program_and_nonsense(sandbox: Sandbox) -> None:
    done = await sandbox.run(["sh", "-c", "kill -SEGV $$"])
    assert (done.end_reason, done.signal, done.exit_code) == (EndReason.SIGNAL, 11, None)
    done = await sandbox.run(["/no/such/program"])
    assert done.exit_code == 127
    assert b"cannot run /no/such/program" in done.stderr
    with pytest.raises(SandboxError, match="argv"):
        await sandbox.run([])
    with pytest.raises(ConfigError, match="stdin has more than 67108864 bytes"):
        await sandbox.run(["cat"], stdin=bytes(64 * 2**20 + 1))
    with pytest.raises(ConfigError, match="memory_mb = 10000 is more than the 512 of the sandbox"):
        await sandbox.run(["true"], limits=Limits(memory_mb=10_000))


async def test_an_input_need_not_be_read_to_its_end(sandbox: Sandbox) -> None:
    done = await sandbox.run(["sh", "-c", "head -c 1000 >/dev/null; echo ok"], stdin=bytes(2**21))
    assert done.stdout == b"ok\n"


async def test_files_go_in_and_out(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 4096
    await sandbox.write("deep/folder/data.bin", data)
    assert await sandbox.read("deep/folder/data.bin") == data
    assert await sandbox.read("/sandbox/deep/folder/data.bin") == data
    await sandbox.write("run.sh", "echo run")
    assert (await sandbox.run(["sh", "run.sh"])).stdout == b"run\n"
    with pytest.raises(SandboxError, match="more than max_bytes = 10"):
        await sandbox.read("deep/folder/data.bin", max_bytes=10)
    with pytest.raises(SandboxError, match="FileNotFoundError"):
        await sandbox.read("missing")
    with pytest.raises(SandboxError, match="OSError"):
        await sandbox.write("/usr/bin/evil", "x")


async def test_a_run_may_bring_the_only_files_that_it_finds(sandbox: Sandbox) -> None:
    await sandbox.write("left.txt", "by somebody")
    await sandbox.run(["sh", "-c", "echo it > /tmp/left; echo it > /dev/shm/left"])
    look = b"import os; print([sorted(os.listdir(f)) for f in ('/sandbox', '/tmp', '/dev/shm')], open('a/b').read(), input())"
    files = {"main.py": look, "a/b": b"\xc3\xa9\n\n2"}
    seen = "[['a', 'main.py'], [], []] é\n\n2 3\n".encode()
    assert (await sandbox.run_python("main.py", stdin=b"3", only_files=files)).stdout == seen
    assert (await sandbox.run(["python3", "main.py"], stdin=b"3", only_files=files)).stdout == seen
    await sandbox.run(["touch", "/tmp/later"])
    assert (await sandbox.run(["ls", "/sandbox", "/tmp"], only_files={})).stdout == b"/sandbox:\n\n/tmp:\n"


async def test_a_snapshot_brings_back_files(sandbox: Sandbox) -> None:
    await sandbox.write("a/b.txt", "before")
    await sandbox.write("c.sh", "#!/bin/sh")
    await sandbox.run(["chmod", "755", "c.sh"])
    snapshot = await sandbox.snapshot()
    await sandbox.write("a/b.txt", "after")
    await sandbox.write("d.txt", "new")
    await sandbox.run(["sh", "-c", "echo x > /tmp/x; rm c.sh"])
    await sandbox.restore(snapshot)
    assert await sandbox.read("a/b.txt") == b"before"
    assert sorted(
        (await sandbox.run(["find", ".", "/tmp", "-type", "f", "-printf", "%p %m\n"])).stdout.splitlines()
    ) == [b"./a/b.txt 644", b"./c.sh 755"]


async def test_programs_run_side_by_side(sandbox: Sandbox) -> None:
    """A tool that is kept open, and runs beside it: the end of one leaves the other alone."""
    async with await sandbox.start(["cat"]) as kept:
        done = await sandbox.run(["sh", "-c", "sleep 1000 & echo started"], timeout_s=5)
        assert done.stdout == b"started\n"
        await kept.send(b"still here\n")
        assert await kept.read_line() == b"still here\n"
        done = await sandbox.run(["sleep", "10"], timeout_s=0.2)
        assert done.end_reason is EndReason.TIMEOUT
        await kept.send(b"and now\n")
        assert await kept.read_line() == b"and now\n"
    done = await sandbox.run(["sh", "-c", "set -- /proc/[0-9]*; echo $#"])
    assert done.stdout == b"2\n", "the first process of the sandbox, and the shell"


async def test_a_run_that_is_given_up_is_killed(sandbox: Sandbox) -> None:
    async with anyio.create_task_group() as given_up:
        given_up.start_soon(sandbox.run, ["sh", "-c", "while true; do echo x >> log; sleep 0.01; done"])
        while not (await sandbox.run(["test", "-s", "log"])).ok:
            await anyio.sleep(0.05)
        given_up.cancel_scope.cancel()
    before = await sandbox.read("log")
    await anyio.sleep(0.1)
    assert await sandbox.read("log") == before
    assert (await sandbox.run(["echo", "fine"])).stdout == b"fine\n"


async def test_programs_run_without_isolation_and_end() -> None:
    with pytest.warns(UserWarning, match="UNSAFE_no_isolation"):
        backend = await choose_backend("UNSAFE_no_isolation", SandboxSpec())
    async with backend.start(SandboxSpec()) as sandbox:
        await sandbox.write("main.py", "import os; print(os.listdir())")
        done = await sandbox.run_python("main.py")
        assert done.stdout == b"['main.py']\n"
        done = await sandbox.run(["sh", "-c", "sleep 1000 & exit 0"])
        assert done.ok
        assert (await sandbox.run(["sleep", "10"], timeout_s=0.2)).end_reason is EndReason.TIMEOUT
        await sandbox.reset()
        assert (await sandbox.run_python(code="import os; print(os.listdir())")).stdout == b"[]\n"


async def test_no_sandbox_outlives_a_killed_process(bubblewrap: BackendName, tmp_path: Path) -> None:
    script = f"""
import anyio
from agentrl.sandboxes import open_sandbox
async def main():
    async with open_sandbox(backend="bubblewrap") as sandbox, await sandbox.start(["sleep", "12345.678"]):
        open({str(tmp_path / "ready")!r}, "w").write("")
        await anyio.sleep_forever()
anyio.run(main)
"""

    def asleep() -> list[str]:
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        return [command.decode() for command in commands if b"12345.678" in command and b"python" not in command]

    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        await wait_until((tmp_path / "ready").exists, timeout_s=60)
        await wait_until(lambda: bool(asleep()), timeout_s=40)
    finally:
        process.kill()
        process.wait()
    await wait_until(lambda: not asleep(), timeout_s=40)


async def test_a_sandbox_whose_first_process_dies_is_lost(bubblewrap: BackendName) -> None:
    async with open_sandbox(backend=bubblewrap) as sandbox:
        kill_first_process(sandbox)
        with pytest.raises(SandboxLostError, match="the sandbox is gone"):
            await sandbox.run(["true"])
        assert sandbox.lost


async def test_what_a_sandbox_cannot_take_is_named(bubblewrap: BackendName) -> None:
    async with open_sandbox(backend=bubblewrap) as sandbox:
        wrong: Any
        for wrong, complaint in (
            ({"argv": "python3 main.py"}, "argv = 'python3 main.py' must be a list of words"),
            ({"argv": ["cat"], "stdin": "1 2"}, "stdin = '1 2' must be a valid bytes"),
            ({"argv": ["cat"], "timeout": 2}, "a run has no option 'timeout'; it may have stdin, timeout_s,"),
        ):
            with pytest.raises((AgentRLError, TypeError), match=complaint):
                await sandbox.run(**wrong)
        assert (await sandbox.run(["true"])).ok


RECURSIONS = {
    "Python": (
        "main.py",
        "import sys\nsys.setrecursionlimit(10**6)\ndef depth(n): return n and 1 + depth(n - 1)\nprint(depth(100_000))",
    ),
    "a thread": (
        "main.py",
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**27)\ndef depth(n): return n and 1 + depth(n - 1)\n"
        "thread = threading.Thread(target=lambda: print(depth(100_000)))\nthread.start(); thread.join()",
    ),
    "C++": (
        "main.cpp",
        "#include <cstdio>\nint depth(int n) { volatile char room[1000]; room[n % 1000] = 1; return n ? room[n % 1000] + depth(n - 1) : 0; }\n"
        'int main() { printf("%d\\n", depth(100000)); }',
    ),
}


@pytest.mark.parametrize("language", RECURSIONS)
async def test_a_recursion_has_the_memory_limit_as_its_stack(sandbox: Sandbox, language: str) -> None:
    name, source = RECURSIONS[language]
    await sandbox.write(name, source)
    if name == "main.py":
        warm = await sandbox.run_python(name)
        assert warm.stdout == b"100000\n", warm
        done = await sandbox.run(["python3", name])
    else:
        if not (await sandbox.run(["sh", "-c", "command -v g++"])).ok:
            pytest.skip("no g++ in this image")
        assert (await sandbox.run(["g++", "-O0", "-o", "main", name], timeout_s=60)).ok
        done = await sandbox.run(["./main"])
        endless = source.replace("n ?", "n + 1 ?")
        await sandbox.write(name, endless)
        assert (await sandbox.run(["g++", "-O0", "-o", "main", name], timeout_s=60)).ok
        assert (await sandbox.run(["./main"], timeout_s=60)).end_reason is EndReason.OUT_OF_MEMORY
    assert done.stdout == b"100000\n", done


async def test_a_program_that_is_killed_as_it_starts_ends_beside_another(sandbox: Sandbox) -> None:
    async with await sandbox.start(["sleep", "1000"]):
        for _ in range(20):
            async with await sandbox.start(["sleep", "1000"]):
                pass
    assert sandbox.lost is None


async def test_too_much_output_is_found_after_the_end_too(sandbox: Sandbox) -> None:
    limits = sandbox.spec.limits.changed(output_mb=0.01)
    for _ in range(20):
        done = await sandbox.run(["head", "-c", "60000", "/dev/zero"], limits=limits)
        assert (done.end_reason, len(done.stdout)) == (EndReason.OUTPUT_LIMIT, 10485)


async def test_a_program_has_as_many_threads_as_processes(sandbox: Sandbox) -> None:
    code = "import threading\nend = threading.Event()\nthreads = [threading.Thread(target=end.wait) for _ in range(40)]\nfor t in threads: t.start()\nend.set(); print(len(threads))"
    assert (await sandbox.run_python(code=code)).stdout == b"40\n"
    assert (await sandbox.run(["python3", "-c", code])).stdout == b"40\n"
