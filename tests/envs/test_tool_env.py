"""`ToolEnv`: an environment in forty lines, gymnasium's rules, and tools that misbehave."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit, TransformReward

from agentrl import Episode
from agentrl.envs import AsyncToolEnv, Message, Result, ToolEnv, tool
from agentrl.errors import EpisodeError, ToolCallError, ToolDefinitionError
from agentrl.rollout.run_episode import remote_runner
from agentrl.testing import ScriptedModel, ToolCall
from tests.components import wait_until

pytestmark = pytest.mark.anyio


def calls(*named: tuple[str, dict[str, Any]]) -> Message:
    made = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(named)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


# An environment with two tools, its reward and its test ---------------------------------------------------------------


class Safe(ToolEnv):
    """Find the code of a safe."""

    max_turns = 5

    def on_reset(self, task: dict[str, Any] | None) -> str:
        self.code = task["code"] if task else int(self.np_random.integers(100))
        return "Find the code of the safe, a number below 100."

    @tool
    def compare(self, number: int) -> str:
        """Compare a number with the code."""
        return "higher" if number < self.code else "lower" if number > self.code else "equal"

    @tool
    def open_safe(self, code: int) -> Result:
        """Try a code. There is one try."""
        return Result("open" if code == self.code else "alarm", reward=float(code == self.code), done=True)

    def on_answer(self, content: str) -> float:
        return 0.0


async def test_the_safe() -> None:
    env = AsyncToolEnv(Safe)
    await env.reset(options={"code": 42})
    await env.step(calls(("compare", {"number": 50})))
    assert env.messages[-1]["content"] == "lower"
    assert await env.step(calls(("open_safe", {"code": 42}))) == 1.0
    assert env.done


# Gymnasium ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[str]:
    gymnasium.register("Safe-v0", entry_point=Safe, max_episode_steps=3)
    yield "Safe-v0"
    del gymnasium.registry["Safe-v0"]


@pytest.mark.filterwarnings("ignore:.*render_modes.*:UserWarning")
def test_gymnasium_accepts_it(registered: str) -> None:
    check_env(gymnasium.make(registered).unwrapped, skip_render_check=True)


def test_without_an_event_loop_it_is_any_gymnasium_environment(registered: str) -> None:
    env = gymnasium.make(registered)
    observation, info = env.reset(seed=3, options={"code": 7})
    assert observation[0]["role"] == "user"
    assert info == {"failed_calls": 0}
    observation, reward, terminated, truncated, info = env.step([calls(("compare", {"number": "x"}))])
    assert observation[0]["content"].startswith("error: the field 'number': input should be")
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"failed_calls": 1})
    assert env.step([{"role": "assistant", "content": "7"}])[1:4] == (0.0, True, False)
    env.close()


async def test_time_limits_and_wrappers_apply(registered: str) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return TransformReward(RecordEpisodeStatistics(gymnasium.make(registered)), lambda reward: 10 * reward)

    env = AsyncToolEnv(make)
    await env.reset(options={"code": 7})
    for _ in range(3):
        assert not env.done
        await env.step(calls(("compare", {"number": 1})))
    assert (env.done, env.truncated) == (True, True)
    assert env.info["episode"]["l"] == 3
    await env.reset(options={"code": 7})
    assert await env.step(calls(("open_safe", {"code": 7}))) == 10.0


async def test_a_wrapper_that_changes_an_action_changes_what_the_environment_gets_and_not_what_was_said() -> None:
    class Meddler(gymnasium.ActionWrapper[Any, Any, Any]):
        def action(self, action: Any) -> Any:
            return [calls(("compare", {"number": 1}))]

    env = AsyncToolEnv(lambda: Meddler(Safe()))
    await env.reset(options={"code": 7})
    said = calls(("compare", {"number": 9}))
    await env.step(said)
    assert env.messages[-2:] == [said, {"role": "tool", "tool_call_id": "c0", "content": "higher"}]


async def test_a_step_after_the_end_is_refused_and_a_reset_begins_anew() -> None:
    env = AsyncToolEnv(Safe)
    await env.reset(options={"code": 7})
    await env.step({"role": "assistant", "content": "7"})
    with pytest.raises(EpisodeError, match="is over"):
        await env.step({"role": "assistant", "content": "7"})
    await env.reset(options={"code": 7})
    assert not env.done


async def test_the_same_seed_is_the_same_task() -> None:
    env = AsyncToolEnv(lambda: TimeLimit(Safe(), 3))
    codes = []
    for seed in (1, 1, 2):
        await env.reset(seed=seed)
        codes.append(env.tool_env.code)  # type: ignore[attr-defined]
    assert codes[0] == codes[1] != codes[2]


async def test_tools_are_not_there_before_the_first_reset() -> None:
    with pytest.raises(EpisodeError, match="comes first"):
        _ = AsyncToolEnv(Safe).tools


# Tools that misbehave -------------------------------------------------------------------------------------------------


class Trouble(ToolEnv):
    """Its tools do what no tool should, plainly and asynchronously; its `__init__` does not call that of its base."""

    max_turns = 20

    def __init__(self) -> None:
        self.released = threading.Event()
        self.begun = threading.Event()
        self.cancelled = False

    def on_reset(self, task: dict[str, Any] | None) -> str:
        return "Go."

    @tool
    def hang(self) -> str:
        self.begun.set()
        self.released.wait(60)
        return "late"

    @tool
    async def hang_async(self) -> str:
        self.begun.set()
        try:
            await anyio.sleep(60)
        finally:
            self.cancelled = True
        return "late"

    @tool
    def fail(self) -> str:
        raise KeyError("nothing there")

    @tool
    async def fail_silently(self) -> str:
        raise ValueError

    @tool
    def leave(self) -> str:
        sys.exit(3)

    @tool
    async def leave_async(self) -> str:
        sys.exit("now")

    @tool
    def stop(self) -> str:
        raise StopIteration

    @tool
    def refuse(self) -> str:
        raise ToolCallError("not now")

    @tool
    async def misspell(self) -> str:
        return self.relaesed  # type: ignore[attr-defined,no-any-return]

    @tool
    def earn_text(self) -> Result:
        return Result(reward="1")  # type: ignore[arg-type]

    @tool
    def flood(self) -> str:
        return "begin" + "x" * 10_000_000 + "end"

    @tool
    def odd(self) -> Any:
        return {"when": time.gmtime(0), "what": {1, 2}}

    @tool
    def picture(self) -> Any:
        return [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]

    @tool
    def empty(self) -> list[str]:
        return []

    @tool
    async def fine(self, word: str = "ok") -> str:
        return word

    def on_answer(self, content: str) -> Result:
        return Result("Go on.") if content == "wait" else Result(reward=1.0, done=True)


async def said(env: AsyncToolEnv, name: str, **arguments: Any) -> Any:
    await env.step(calls((name, arguments)))
    return env.messages[-1]["content"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fail", "error: 'nothing there'"),
        ("fail_silently", "error: ValueError"),
        ("hang", "error: hang took longer than 0.3 s and was given up"),
        ("hang_async", "error: hang_async took longer than 0.3 s and was given up"),
        ("nothing", "error: no tool 'nothing'; the tools are hang, hang_async, fail"),
        ("refuse", "error: not now"),
    ],
)
async def test_the_model_is_told_what_went_wrong(name: str, told: str) -> None:
    env = AsyncToolEnv(Trouble)
    await env.reset()
    if name.startswith("hang"):
        env.tool_env.tool_timeout_s = 0.3
    assert (await said(env, name)).startswith(told)
    assert env.failed_calls == 1
    env.tool_env.tool_timeout_s = 60
    if name == "hang":
        assert await said(env, "fail") == "error: hang is still running"
        env.tool_env.released.set()  # type: ignore[attr-defined]
    assert await said(env, "fine") == "ok"
    assert env.failed_calls == 0
    assert not env.done
    if name == "hang_async":
        assert env.tool_env.cancelled  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("misspell", "AttributeError: 'Trouble' object has no attribute 'relaesed'"),
        ("earn_text", "BadRewardError: the reward of a Result is '1'"),
        ("leave", "EpisodeError: leave called sys.exit(3)"),
        ("leave_async", "EpisodeError: leave_async called sys.exit('now')"),
        ("stop", "StopIteration"),
    ],
)
async def test_a_fault_of_the_environments_own_fails_the_episode_and_says_in_which_line(name: str, fault: str) -> None:
    async def run(episode: Episode) -> float:
        return await episode.env(Trouble).play(episode)

    model = ScriptedModel(ToolCall(name), "done")
    async with (
        model.serve() as url,
        remote_runner(run, base_url=url, api_key="-", model="m", timeout_s=60) as runner,
    ):
        outcome = await runner.run({}, 0)
    assert (outcome.finished, len(model.requests)) == (False, 1), "the model was told"
    assert outcome.error is not None
    assert fault in outcome.error
    assert f"This came out of the tool '{name}'" in outcome.error
    assert re.search(rf'{re.escape(__file__)}", line \d+, in {name}\b', outcome.error)


async def test_what_may_be_either_is_told_to_the_model_and_logged_once_with_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Unclear(Trouble):
        @tool
        def look_up(self) -> str:
            return {}["word"]  # type: ignore[no-any-return]

        @tool
        def read(self) -> str:
            return open("/nowhere").read()

    env = AsyncToolEnv(Unclear)
    await env.reset()
    for name in ("look_up", "refuse", "nothing", "look_up"):
        await said(env, name)
    assert (await said(env, "read")).startswith("error: [Errno 2] No such file")
    lines = [record.getMessage() for record in caplog.records if "told to the model" in record.getMessage()]
    line, _ = lines
    assert re.match(rf"The tool look_up raised KeyError at {re.escape(__file__)}:\d+ in look_up", line)


@pytest.mark.parametrize(
    ("reward", "earned"), [(np.array([0.5]), 0.5), (np.array([[2.0]]), 2.0), (np.float32(0.25), 0.25), (True, 1.0)]
)
async def test_a_reward_is_any_one_number_of_a_tool_an_answer_and_a_plain_environment(
    reward: Any, earned: float
) -> None:
    class Earns(ToolEnv):
        def on_reset(self, task: Any) -> str:
            return "Go."

        @tool
        def earn(self) -> Result:
            return Result(reward=reward)

        def on_answer(self, content: str) -> Any:
            return reward

    class Plain(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return 0, reward, True, False, {}

    env = AsyncToolEnv(Earns)
    await env.reset()
    assert await env.step(calls(("earn", {}))) == earned
    assert await env.step({"role": "assistant", "content": "done"}) == earned
    assert env.total_reward == 2 * earned
    plain = AsyncToolEnv(Plain)
    await plain.reset()
    assert await plain.step(calls(("act", {"action": 0}))) == earned


async def test_an_action_that_fits_is_never_the_models_fault_whatever_the_environment_raises() -> None:
    class Broken(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return {}["state"], 0.0, True, False, {}

    env = AsyncToolEnv(Broken)
    await env.reset()
    await env.step(calls(("act", {"action": 7})))
    assert "the field 'action': input should be less than or equal to 1, not 7" in env.messages[-1]["content"]
    with pytest.raises(KeyError, match="state"):
        await env.step(calls(("act", {"action": 1})))


async def test_ten_megabytes_lose_their_middle() -> None:
    env = AsyncToolEnv(Trouble)
    await env.reset()
    shown = await said(env, "flood")
    assert len(shown) < 21_000
    assert shown.startswith("beginx")
    assert shown.endswith("xend")
    assert "9,980,008 characters left out" in shown


async def test_anything_can_be_returned_and_pictures_stay_pictures() -> None:
    env = AsyncToolEnv(Trouble)
    await env.reset()
    assert "1970" in await said(env, "odd")
    assert (await said(env, "picture"))[0]["type"] == "image_url"
    assert await said(env, "empty") == "[]"


async def test_calls_in_one_message_are_answered_in_turn_and_an_answer_may_go_on() -> None:
    env = AsyncToolEnv(Trouble)
    await env.reset()
    await env.step(calls(("fine", {"word": "a"}), ("fail", {}), ("fine", {"word": "b"})))
    assert [m["content"] for m in env.messages[-3:]] == ["a", "error: 'nothing there'", "b"]
    assert [m["tool_call_id"] for m in env.messages[-3:]] == ["c0", "c1", "c2"]
    await env.step({"role": "assistant", "content": "wait"})
    assert (env.messages[-1], env.done) == ({"role": "user", "content": "Go on."}, False)
    assert await env.step({"role": "assistant", "content": "done"}) == 1.0
    assert env.done


async def test_what_comes_after_the_end_in_one_message_is_not_carried_out() -> None:
    env = AsyncToolEnv(Safe)
    await env.reset(options={"code": 7})
    assert await env.step(calls(("open_safe", {"code": 1}), ("open_safe", {"code": 7}))) == 0.0
    assert [m["content"] for m in env.messages[-2:]] == ["alarm", "the episode is over"]


async def test_a_hundred_troublesome_episodes_do_not_hold_up_a_good_one() -> None:
    """Half of them hang in threads, half on the event loop, until the good one has had its turns."""
    slow: list[AsyncToolEnv] = []
    for _ in range(100):
        env = AsyncToolEnv(Trouble)
        await env.reset()
        slow.append(env)
    good = AsyncToolEnv(Trouble)
    await good.reset()
    async with anyio.create_task_group() as group:
        for index, env in enumerate(slow):
            group.start_soon(env.step, calls(("hang" if index % 2 else "hang_async", {})))
        await wait_until(lambda: all(env.tool_env.begun.is_set() for env in slow), 60)  # type: ignore[attr-defined]
        for _ in range(5):
            assert await said(good, "fine") == "ok"
            assert await said(good, "fail") == "error: 'nothing there'"
        assert all(env.messages[-1]["role"] == "assistant" for env in slow)
        group.cancel_scope.cancel()
    for env in slow:
        env.tool_env.released.set()  # type: ignore[attr-defined]


async def cancel_within(env: AsyncToolEnv, name: str) -> None:
    """Cancel an episode while it is in a tool that hangs."""
    with anyio.fail_after(40):
        async with anyio.create_task_group() as group:
            group.start_soon(env.step, calls((name, {})))
            await wait_until(env.tool_env.begun.is_set, 40)  # type: ignore[attr-defined]
            group.cancel_scope.cancel()


async def test_an_environment_that_hangs_does_not_hold_up_the_end_of_its_episode() -> None:
    env = AsyncToolEnv(Trouble)
    await env.reset()
    await cancel_within(env, "hang")
    env.tool_env.released.set()  # type: ignore[attr-defined]
    await env.close()


@pytest.mark.parametrize("name", ["hang", "hang_async"])
async def test_neither_does_one_inside_a_wrapper_and_what_it_awaits_is_cancelled(name: str) -> None:
    inner = Trouble()
    env = AsyncToolEnv(lambda: RecordEpisodeStatistics(inner))
    await env.reset()
    await cancel_within(env, name)
    inner.released.set()
    if name == "hang_async":
        await wait_until(lambda: inner.cancelled, 40)
    await env.close()


class Echo(ToolEnv):
    """Returns what it is given."""

    def on_reset(self, task: Any) -> str:
        return "Call it."

    def on_answer(self, content: str) -> float:
        return 0.0

    @tool
    def echo(self, value: Any) -> Any:
        """Return a value."""
        return value


@pytest.mark.parametrize(
    "arguments",
    ['{"value": "\\ud83d"}', '{"value": ' + "[" * 5000, '{"value": ' + "[" * 5000 + "]" * 5000 + "}", "{", "[1]"],
)
async def test_whatever_arguments_a_model_writes_their_result_can_be_sent(arguments: str) -> None:
    env = Echo()
    await env.areset()
    call = {"id": "1", "type": "function", "function": {"name": "echo", "arguments": arguments}}
    (message,), *_ = await env.astep([{"role": "assistant", "tool_calls": [call]}])
    assert message["content"].encode()


def test_a_method_that_episodes_would_not_call_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="Counted defines step: define on_reset and tools"):
        type("Counted", (ToolEnv,), {"step": lambda self, action: None})
