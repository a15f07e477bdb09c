"""Environments of the verifiers library, unmodified: against a model that says the right thing, and on the real engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync as in_thread
from openai import AsyncOpenAI

from agentrl.engine.client import sglang_engine
from agentrl.errors import TaskFileError
from agentrl.proxy import ChatFormat, SamplingDefaults, open_proxy
from agentrl.rollout.run_episode import local_runner, remote_runner
from agentrl.store.outcome import Outcome
from agentrl.tasks.tasks import list_tasks
from agentrl.tasks.verifiers_tasks import load_environment
from agentrl.testing import ScriptedModel, ToolCall
from agentrl.workflows import verifiers_env
from tests.record_invariant import Tapped, assert_record_is_what_the_engine_saw

pytestmark = [
    pytest.mark.anyio,
    # verifiers and datasets leave these behind
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
HUB = Path(__file__).parent / "hub"


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments are installed."""
    monkeypatch.syspath_prepend(str(HUB))


async def outcome_of(script: Callable[[list[dict[str, Any]]], Any], task: dict[str, Any]) -> Outcome:
    async with (
        ScriptedModel(lambda request: script(request["messages"])).serve() as url,
        remote_runner(verifiers_env.run, base_url=url, api_key="-", model="scripted", timeout_s=60) as runner,
    ):
        return await runner.run(task, 0)


async def test_a_tool_environment_with_its_rewards_and_metrics() -> None:
    seen: list[list[dict[str, Any]]] = []

    def script(messages: list[dict[str, Any]]) -> Any:
        seen.append(messages)
        if len(messages) == 1:
            return ToolCall("lookup", '{"country": "Italy"}')
        return f"It is {messages[-1]['content']}, the eternal city."

    outcome = await outcome_of(script, {"environment": "vf-capitals", "row": 1})
    assert (outcome.error, outcome.reward) == (None, 1.0)
    assert outcome.metrics["right"] == 1.0
    assert outcome.metrics["brief"] == 0.0
    assert seen[0] == [{"role": "user", "content": "What is the capital of Italy?"}]
    assert seen[1][-1]["role"] == "tool"
    brief = await outcome_of(lambda _: "Paris", {"environment": "vf-capitals", "row": 0})
    assert brief.reward == 1.5


async def test_a_bundled_environment_scores_as_it_does_by_itself() -> None:
    environment = await in_thread(load_environment, "vf-gcd", "{}")
    entry = environment.rg_dataset[4]
    right = await outcome_of(lambda _: f"<answer>{entry['answer']}</answer>", {"environment": "vf-gcd", "row": 4})
    wrong = await outcome_of(lambda _: "<answer>-1</answer>", {"environment": "vf-gcd", "row": 4})
    assert (right.error, right.reward) == (None, 1.0)
    assert wrong.reward == environment.rg_dataset.score_answer("-1", entry)
    assert right.metrics["check_answer_reward_func"] == 1.0


async def test_what_cannot_be_loaded_fails_its_episode() -> None:
    for task, complaint in (
        ({"environment": "vf-nowhere"}, "'vf-nowhere' cannot be loaded"),
        ({"environment": "vf-gcd", "args": {"colour": 1}}, "cannot be loaded"),
    ):
        assert complaint in ((await outcome_of(lambda _: "", task)).error or "")


@pytest.mark.soak
async def test_on_the_real_engine(any_server_url: str, nano_format: ChatFormat) -> None:
    async with sglang_engine([any_server_url]) as engine:
        tapped = Tapped(engine)
        async with open_proxy(tapped, nano_format, "nano") as proxy:
            defaults = SamplingDefaults(max_tokens=16)
            async with local_runner(verifiers_env.run, proxy, timeout_s=60, defaults=defaults) as runner:
                for name, metric in (("vf-gcd", "check_answer_reward_func"), ("vf-capitals", "right")):
                    tapped.calls.clear()
                    outcome = await runner.run({"environment": name, "row": 1}, 0)
                    assert outcome.error is None, outcome.error
                    assert metric in outcome.metrics
                    assert_record_is_what_the_engine_saw(outcome.record, tapped.calls)


async def test_each_kind_plays_as_the_library_says() -> None:
    seen: list[list[dict[str, Any]]] = []

    def wrong_once(messages: list[dict[str, Any]]) -> Any:
        seen.append(messages)
        return "2" if len(messages) > 2 else "7"

    def adds(messages: list[dict[str, Any]]) -> Any:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        return results[-1] if len(results) == 2 else ToolCall("add", '{"number": 1}')

    single, many, stateful = [
        await in_thread(list_tasks, f'verifiers:vf-kinds?{{"kind": "{kind}"}}')
        for kind in ("single", "many", "stateful")
    ]
    outcome = await outcome_of(lambda messages: str(len(messages)), single[2])
    assert (outcome.error, outcome.reward) == (None, 1.0)  # the system prompt comes first
    outcome = await outcome_of(wrong_once, many[2])
    assert (outcome.error, outcome.reward, len(seen)) == (None, 1.0, 2)
    assert seen[1][-1]["content"] == "No. Level 2, limit 2."
    outcomes = [await outcome_of(adds, stateful[2]) for _ in range(2)]
    assert [(outcome.error, outcome.reward) for outcome in outcomes] == [(None, 1.0)] * 2


KINDS = ("single", "many", "stateful", "weights", "group", "parser", "think", "none", "sampling", "tool", "mixture")
SHARPEST = ("group", "sampling", "mixture")


@pytest.mark.parametrize(
    "kind", [kind if kind in SHARPEST else pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS]
)
async def test_rewards_and_requests_are_those_of_the_library_itself(kind: str) -> None:
    def says(request: dict[str, Any]) -> Any:
        asked = [message["content"] for message in request["messages"] if message["role"] == "user"]
        if request.get("tools") and request["messages"][-1]["role"] != "tool":
            name = request["tools"][0]["function"]["name"]
            return ToolCall(name, '{"number": 1}')
        said = asked[-1].removeprefix("Say ").removesuffix(".")
        return [said, f"<think>\nSo\n</think>\n<answer>\n{said}\n</answer>", f"<think>So</think>{said}", "2", said][
            len(said) * len(asked) % 5
        ]

    requests: list[dict[str, Any]] = []

    def script(request: dict[str, Any]) -> Any:
        requests.append(request)
        return says(request)

    environment = await in_thread(load_environment, "vf-kinds", json.dumps({"kind": kind}))
    rows = environment.get_dataset().to_list()
    async with (
        ScriptedModel(script).serve() as url,
        AsyncOpenAI(base_url=url, api_key="-") as client,
        remote_runner(verifiers_env.run, base_url=url, api_key="-", model="scripted", timeout_s=60) as runner,
    ):
        for index, row in enumerate(rows):
            theirs = (await environment.generate([row], client, "scripted", independent_scoring=True))["outputs"][0]
            expected, requests[:] = [*requests], []
            assert expected
            ours = await runner.run({"environment": "vf-kinds", "args": {"kind": kind}, "row": index}, 0)
            assert (ours.error, ours.reward) == (None, theirs["reward"])
            assert {name: ours.metrics[name] for name in theirs["metrics"]} == theirs["metrics"]
            assert requests == expected
            requests.clear()


def test_tasks_of_an_environments_own_datasets() -> None:
    assert list_tasks("verifiers:owner/vf-capitals") == [
        {"environment": "owner/vf-capitals", "split": "train", "row": row} for row in range(2)
    ]
    args = {"num_train_examples": 7}
    tasks = list_tasks(f"verifiers:vf-gcd@eval?{json.dumps(args)}")
    assert (len(tasks), tasks[-1]) == (5, {"environment": "vf-gcd", "args": args, "split": "eval", "row": 4})
    assert len(list_tasks('verifiers:vf-kinds@eval?{"kind": "held-out"}')) == 3


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("vf-nowhere", "'vf-nowhere' cannot be loaded.*Ensure the package"),
        ("vf-gcd@test", "write verifiers:ENV, verifiers:ENV@train or verifiers:ENV@eval"),
        ("vf-gcd?{gym}", "the arguments after . are not JSON"),
        ("vf-gcd?[1]", "must be a JSON object"),
        ('vf-gcd?{"colour": 1}', "cannot be loaded.*colour"),
        ('vf-kinds?{"kind": "held-out"}', "'vf-kinds' has no dataset to train on: dataset is not set; try @eval"),
        ('vf-kinds?{"kind": "compared"}', r"compares the attempts of a group \(compared\)"),
        ('vf-kinds?{"kind": "compared-mixture"}', r"compares the attempts of a group \(compared\)"),
        ("./nowhere", r"a folder must be installed first: pip install -e \./nowhere"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused(source: str, complaint: str) -> None:
    with pytest.raises(TaskFileError, match=complaint):
        list_tasks(f"verifiers:{source}")
