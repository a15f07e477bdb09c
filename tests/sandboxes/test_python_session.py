"""An interpreter that keeps its state, whatever the code does to it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import BackendName, EndReason, Limits, PythonSession, open_sandbox, python_session

pytestmark = pytest.mark.anyio


@pytest.fixture
async def python(backend: BackendName) -> AsyncIterator[PythonSession]:
    async with (
        open_sandbox(backend=backend, limits=Limits(memory_mb=200)) as sandbox,
        python_session(sandbox, 200) as session,
    ):
        yield session


async def test_state_output_and_values(python: PythonSession) -> None:
    done = await python.execute("import math\ndef f(x):\n    return x * 2\nprint('defined')")
    assert (done.output, done.raised, done.text) == ("defined\n", False, "defined")
    assert (await python.execute("f(math.pi)")).text == "6.283185307179586"
    assert (await python.execute("f")).text.startswith("<function f at")
    assert (await python.execute("x = 1")).text == "[no output]"
    assert (await python.execute("")).text == "[no output]"
    assert (await python.execute("import subprocess; subprocess.run(['echo', 'from a program'])")).output.startswith(
        "from"
    )
    assert (await python.execute("import sys; print('oops', file=sys.stderr)")).text == "oops"
    assert (await python.execute("input()")).text.endswith("EOFError: EOF when reading a line")


async def test_exceptions_show_the_code_s_own_frames(python: PythonSession) -> None:
    done = await python.execute("def g():\n    return 1 / 0\ng()")
    assert done.raised
    assert done.text.splitlines()[0] == "Traceback (most recent call last):"
    assert "agentrl" not in done.text
    assert done.text.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "SyntaxError" in (await python.execute("x = (")).text
    assert (await python.execute(r"raise ValueError('\ud800')")).text.endswith(r"ValueError: \ud800")
    assert (await python.execute("raise SystemExit(3)")).text.endswith("SystemExit: 3")
    assert (await python.execute("1 + 1")).text == "2"


async def test_code_that_takes_too_long_is_interrupted_and_keeps_its_state(
    python: PythonSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["agentrl.sandboxes.python_session"], "INTERRUPT_GRACE_S", 30.0)
    await python.execute("x = 5")
    done = await python.execute("print('so far', flush=True)\nwhile True: pass", timeout_s=2)
    assert (done.timed_out, done.state_lost, done.text) == (True, False, "so far\n[timed out]")
    assert (await python.execute("x")).text == "5"


@pytest.mark.parametrize("first", ["", "x = 5"])
@pytest.mark.parametrize(
    "code",
    [
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass",
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
    ],
)
async def test_code_that_resists_costs_its_state(python: PythonSession, code: str, first: str) -> None:
    if first:
        await python.execute(first)
    done = await python.execute(code, timeout_s=0.2)
    assert (done.timed_out, done.state_lost) == (True, True)
    assert done.text == "[timed out]\n[the interpreter was restarted: variables are lost]"
    assert "NameError" in (await python.execute("x")).text


async def test_an_interpreter_that_dies_is_replaced(python: PythonSession) -> None:
    done = await python.execute("import os\nos._exit(3)")
    assert done.output == "[the interpreter ended: exit code 3, signal None]"
    assert done.state_lost
    done = await python.execute(
        "def hoard():\n kept = []\n while True: kept.append(bytearray(b'x') * 2**20)\nhoard()", timeout_s=20
    )
    assert done.output.endswith("MemoryError\n")
    assert not done.state_lost
    await python.execute(
        "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'nonsense\\n')\n    except OSError: pass"
    )
    assert (await python.execute("2 + 2")).text == "4"


async def test_the_middle_of_a_long_output_is_left_out(python: PythonSession) -> None:
    text = (await python.execute("print('a' * 1000 + 'z' * 1000)")).text
    assert text.startswith("a" * 100 + "\n[1801 characters left out]\nz")
    assert text.endswith("]\n" + "z" * 99)
    assert len(text) < 250


async def test_code_that_prints_more_than_a_file_holds_keeps_its_state(python: PythonSession) -> None:
    await python.execute("x = 5")
    done = await python.execute("while True: print('a' * 10**6)", timeout_s=60)
    assert (done.output[:3], done.raised, done.state_lost) == ("aaa", True, False)
    assert done.output.endswith("OSError: [Errno 27] File too large\n")
    assert (await python.execute("print(x)")).text == "5"


async def test_each_answer_is_of_its_own_code_where_code_forks(python: PythonSession) -> None:
    await python.execute("import os\nos.fork()")
    assert [(await python.execute(str(number))).text for number in range(5)] == ["0", "1", "2", "3", "4"]


async def test_what_code_defines_is_found_in_its_main_module(python: PythonSession) -> None:
    await python.execute("from multiprocessing import Pool\ndef square(x): return x * x")
    assert (await python.execute("with Pool(2) as pool: print(pool.map(square, range(4)))")).text == "[0, 1, 4, 9]"


async def test_a_shell_beside_the_interpreter(backend: BackendName) -> None:
    """One sandbox, two tools: files are shared, and a command leaves the interpreter's state alone."""
    async with open_sandbox(backend=backend) as sandbox, python_session(sandbox) as python:
        await python.execute("x = 7\nopen('x.txt', 'w').write(str(x))")
        done = await sandbox.run(["sh", "-c", "cat x.txt; echo 8 > y.txt; sleep 100 &"], timeout_s=5)
        assert (done.stdout, done.end_reason) == (b"7", EndReason.EXIT)
        assert (await python.execute("x + int(open('y.txt').read())")).text == "15"
