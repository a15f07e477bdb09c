"""`check_env` passes sound environments, and names what is wrong with each of these others."""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from agentrl.envs import Result, ToolEnv, tool
from agentrl.errors import CheckFailedError, UsageError
from agentrl.testing import check_env

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is busy, a short step of the event loop takes long by the clock."""
    monkeypatch.setattr(sys.modules["agentrl.testing.check_env"], "BLOCKED_AFTER_S", 60)


class Sound(ToolEnv):
    """Find a number."""

    max_turns = 6

    def on_reset(self, task: dict[str, Any] | None) -> str:
        self.code = task["code"] if task else int(self.np_random.integers(1_000_000))
        return f"Find {self.code}."

    @tool
    def compare(self, number: int) -> str:
        """Compare a number with the code."""
        return "higher" if number < self.code else "lower"

    def on_answer(self, content: str) -> float:
        return float(content == str(self.code))


class Refuses(Sound):
    """A tool that tells the model what is wrong with its call is none that is at fault."""

    @tool
    def look_up(self, word: str) -> str:
        """Look a word up."""
        return {"tree": "a large plant"}[word]


class OneStep(gymnasium.Env[Any, Any]):
    """Is over with its first step, in numpy's words."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 1, np.float32(1), np.bool_(False), np.bool_(True), {}


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (Sound, {}),
        (Refuses, {}),
        (Sound, {"tasks": [{"code": 42}, {"code": 7}]}),
        ("agentrl/Calculator-v0", {}),
        ("FrozenLake-v1", {"is_slippery": False}),
        ("Blackjack-v1", {}),
        (OneStep, {}),
    ],
)
@pytest.mark.usefixtures("slow_steps")
async def test_sound_environments_pass(env: Any, settings: dict[str, Any]) -> None:
    await check_env(env, settings.pop("tasks", (None,)), **settings)


class OpensNothing(Sound):
    def on_reset(self, task: Any) -> Any:
        return []


class OpensOddly(Sound):
    def on_reset(self, task: Any) -> Any:
        return [{"role": "robot", "content": "hello"}]


class NeedsATask(Sound):
    def on_reset(self, task: Any) -> str:
        return str(task["question"])


class Undescribed(Sound):
    @tool
    def peek(self) -> str:
        return "no"


class UntypedTool(Sound):
    @tool
    def peek(self, at) -> str:  # type: ignore[no-untyped-def]
        """Peek."""
        return "no"


class Unseeded(Sound):
    def on_reset(self, task: Any) -> str:
        self.code = random.randrange(10**9)
        return f"Find {self.code}."


class UnseededSteps(Sound):
    @tool
    def compare(self, number: int) -> str:
        """Compare."""
        return str(random.random())


class Remembers(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def on_reset(self, task: Any) -> str:
        self.code = 7
        return f"You said {len(self.said)} things."

    def on_answer(self, content: str) -> float:
        self.said.append(content)
        return 0.0


class NotFinite(Sound):
    def on_answer(self, content: str) -> float:
        return float("nan")


class Picky(Sound):
    def on_answer(self, content: str) -> float:
        return float({"yes": 1.0, "no": 0.0}[content])


class PickyAndShort(Picky):
    max_turns = 2


class ScoresNothing(Sound):
    max_turns = 1

    def on_answer(self, content: str) -> Any:
        if content == str(self.code):
            return 1.0
        return None


class OpensWithNone(Sound):
    def on_reset(self, task: Any) -> Any:
        return None


class BrokenLastTool(Sound):
    max_turns = 1

    @tool
    async def peek(self, at: str) -> str:
        """Peek."""
        return self.kode  # type: ignore[attr-defined,no-any-return]


class Endless(Sound):
    max_turns = 10**9

    def on_answer(self, content: str) -> Result:
        return Result("Go on.")


class ClosesBadly(Sound):
    async def aclose(self) -> None:
        raise RuntimeError("already closed")


class OpensFiveTimes(Sound):
    opened = 0

    def on_reset(self, task: Any) -> str:
        type(self).opened += 1
        if type(self).opened > 5:
            raise OSError("too many connections")
        return super().on_reset(task)


class Blocks(Sound):
    @tool
    async def compare(self, number: int) -> str:
        """Compare."""
        end = time.thread_time() + 1
        while time.thread_time() < end:
            pass
        return "higher"


class LeavesFiles(Sound):
    kept: list[Any] = []  # noqa: RUF012

    def on_reset(self, task: Any) -> str:
        self.kept.append(tempfile.TemporaryFile())  # noqa: SIM115
        return super().on_reset(task)


class LeavesThreads(Sound):
    end = threading.Event()

    def on_reset(self, task: Any) -> str:
        threading.Thread(target=self.end.wait, args=(60,), name="poller", daemon=True).start()
        return super().on_reset(task)


class WrongSpace(gymnasium.Env[Any, Any]):
    """Its observations are not of its space."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.int64(7), {}

    def step(self, action: Any) -> Any:
        return np.int64(7), 0.0, True, False, {}


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    LeavesThreads.end.set()
    for file in LeavesFiles.kept:
        file.close()


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (OpensNothing, r"reset returned the messages \[\]\n"),
        (OpensOddly, "reset returned the messages .*robot"),
        (
            lambda: OpensNothing(turns=3),
            r"making it raised TypeError.*takes no arguments\n.*check its name and its arguments",
        ),
        (NeedsATask, r"reset with the task None raised TypeError.*\n.*check_env\(env, tasks="),
        (Undescribed, r"the tool 'peek' has no description\n.*docstring"),
        (UntypedTool, "the parameter 'at' has no type"),
        (Unseeded, r"the same seed and task went differently: (.|\n)*self.np_random"),
        (UnseededSteps, "the same seed and task went differently: "),
        (Remembers, "a second episode of one environment went differently: .*said 0 things.* and then .*said 1 things"),
        (NotFinite, "NotFinite.on_answer returned is nan.*\n.*must earn a finite number"),
        (PickyAndShort, r"made step raise KeyError: '42'\n.*an answer must earn"),
        (ScoresNothing, "the reward that ScoresNothing.on_answer returned is None"),
        (OpensWithNone, r"on_reset returned None of type NoneType; return the text of the user, or a list"),
        (BrokenLastTool, r"'peek'.* made step raise AttributeError.*kode.*\n.*refuse a call raises ToolCallError"),
        (Endless, r"did not end within 200 messages\n.*max_turns"),
        (LeavesFiles, "made and closed 4 times, it leaves files behind"),
        (LeavesThreads, "made and closed 4 times, it leaves threads behind: poller"),
        (WrongSpace, "gymnasium's check_env says"),
        (ClosesBadly, "closing it raised RuntimeError: already closed"),
        (OpensFiveTimes, "reset with the task None raised OSError: too many connections"),
    ],
)
@pytest.mark.usefixtures("slow_steps")
async def test_what_is_wrong_is_named_with_its_remedy(env: Any, complaint: str) -> None:
    with pytest.raises(CheckFailedError, match=complaint) as caught:
        await check_env(env)
    assert str(caught.value).startswith(f"the environment {env.__name__} has 1 problem:\n1. ")


async def test_what_blocks_the_event_loop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["agentrl.testing.check_env"], "BLOCKED_AFTER_S", 0.5)
    with pytest.raises(CheckFailedError, match=r"test_check_env.py:\d+ in compare blocks the event loop") as caught:
        await check_env(Blocks)
    assert str(caught.value).startswith("the environment Blocks has 1 problem:\n1. ")


async def test_of_an_environment_of_gymnasium_it_does_not_speak_in_the_terms_of_another() -> None:
    class Unseeded(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Discrete(10**9)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return options["start"], {}

    for tasks in ([None], [{"start": 1}]):
        with pytest.raises(CheckFailedError) as caught:
            await check_env(Unseeded, tasks)
        assert "on_reset" not in str(caught.value)


async def test_nothing_to_check_is_refused() -> None:
    with pytest.raises(UsageError, match="tasks is empty"):
        await check_env(Sound, tasks=[])
