"""Nothing on the loopback asks the proxy that the environment names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentrl import Episode
from agentrl.rollout.check_start import check_endpoint
from agentrl.rollout.run_episode import remote_runner
from agentrl.system.this_process import exempt_loopback, is_loopback
from agentrl.testing import ScriptedModel
from agentrl.workflows.judge import judged

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("dead_proxy")]
OURS = "localhost,127.0.0.1,::1,0.0.0.0"


@pytest.mark.parametrize(
    ("upper", "lower", "then"),
    [
        ("", "", OURS),
        ("corp.example", "", f"corp.example,{OURS}"),
        ("", "corp.example,localhost", "corp.example,localhost,127.0.0.1,::1,0.0.0.0"),
        ("upper.example", "lower.example", f"lower.example,{OURS}"),
    ],
)
def test_the_loopback_joins_what_is_exempt_already(
    upper: str, lower: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", upper)
    monkeypatch.setenv("no_proxy", lower)
    for _ in range(2):  # as every process does that agentrl starts
        exempt_loopback()
        assert (os.environ["NO_PROXY"], os.environ["no_proxy"]) == (then, then)


def test_a_star_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    exempt_loopback()
    assert os.environ["NO_PROXY"] == "*"


@pytest.mark.parametrize(
    ("hosts", "ours"),
    [
        ("127.0.0.1:8000 127.0.0.2 [::1]:80 [::ffff:127.0.0.1] 0.0.0.0 localhost", True),
        ("localhost.example 127.0.0.1.example 10.0.0.1 [2001:db8::1]", False),
    ],
)
def test_the_loopback_is_known_by_its_host(hosts: str, ours: bool) -> None:
    assert {is_loopback(f"http://{host}/v1") for host in hosts.split()} == {ours}


def test_a_process_that_imports_agentrl_reaches_the_loopback_and_so_do_its_children() -> None:
    program = "import agentrl, os, sys; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    shown = "import urllib.request; print(urllib.request.proxy_bypass('127.0.0.1'), urllib.request.proxy_bypass('a.example'))"
    done = subprocess.run([sys.executable, "-c", program, shown], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


async def test_an_endpoint_its_episodes_and_a_judge_on_the_loopback_are_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(episode: Episode) -> float:
        reply = await episode.client.chat.completions.create(model=episode.model, messages=[])
        return float(reply.choices[0].message.content or "nan")

    async with ScriptedModel(lambda _: "0.5").serve() as url:
        await check_endpoint(url, "-")
        async with remote_runner(run, base_url=url, api_key="-", model="m", timeout_s=60) as runner:
            outcome = await runner.run({}, 0)
        assert (outcome.error, outcome.reward) == (None, 0.5)
    async with ScriptedModel("Score: 5").serve() as url:
        monkeypatch.setenv("AGENTRL_JUDGE_BASE_URL", url)
        monkeypatch.setenv("AGENTRL_JUDGE_MODEL", "m")
        assert (await judged("!", {"prompt": "?"})).value == 0.5
