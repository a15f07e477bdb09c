"""The shop: every task has an agent that earns its reward, and none for whom it is free."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs import AsyncToolEnv
from agentrl.envs.shop import CASES, ShopEnv, shop_task

pytestmark = pytest.mark.anyio
SEEDS = range(60)


async def reward_of(task: dict[str, Any], actions: list[dict[str, Any]], last: str) -> float:
    env = AsyncToolEnv(ShopEnv())
    await env.reset(options=task)
    for action in actions:
        call = {"name": action["tool"], "arguments": json.dumps(action["arguments"])}
        await env.step({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]})
        assert env.failed_calls == 0
    await env.step({"role": "assistant", "content": last})
    return env.total_reward


def agents(task: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What agents do who do the same whatever the user wants."""
    order = task["actions"][0]["arguments"]["order"]
    item = next(iter(task["database"]["orders"][order]["items"]))
    refusals = [("refuse", {"reason": reason}) for reason in ("already_sent", "too_late", "not_theirs")]
    done: list[tuple[str, dict[str, str]]] = [("cancel_order", {}), ("refund_item", {"item": item}), *refusals]
    return [[], *([{"tool": name, "arguments": {"order": order, **rest}}] for name, rest in done)]


async def test_whoever_keeps_to_the_rules_earns_the_reward_and_nobody_else() -> None:
    met = Counter[str]()
    for seed in SEEDS:
        task = shop_task(seed)
        met[task["case"]] += 1
        told = " ".join(map(str, task["outputs"]))
        assert await reward_of(task, task["actions"], f"It is done: {told}") == 1.0
        for actions in agents(task):
            assert await reward_of(task, actions, f"It is done: {told}") == float(actions == task["actions"])
        if task["outputs"]:
            assert await reward_of(task, task["actions"], "It is done.") == 0.0
    assert met.keys() == CASES.keys()
    assert min(met.values()) > len(SEEDS) / 15


def test_a_task_is_its_seeds_and_the_files_hold_different_ones(tmp_path: Path) -> None:
    assert shop_task(7) == shop_task(7) != shop_task(8)
    command = [sys.executable, "-m", "agentrl.envs.shop", str(tmp_path), "--train", "20", "--eval", "5"]
    subprocess.run(command, check=True, timeout=60)
    tasks = [
        json.loads(line) for name in ("train", "eval") for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()
    ]
    assert len({json.dumps(task) for task in tasks}) == 25
    assert {task["env"] for task in tasks} == {"agentrl/Shop-v0"}
