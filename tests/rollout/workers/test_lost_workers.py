"""Workers that end, or cannot be started, in ways that no one expects: an episode may fail for it, the run goes on."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.config import load_config
from agentrl.engine.client.sglang import sglang_engine
from agentrl.models import NANO
from agentrl.rollout.open_runner import open_rollout
from tests.engine.scripted_server import Answer, Json, scripted_server, sound_states

WORKFLOW = """
import os

async def run(episode):
    if episode.task["signal"]:
        os.kill(os.getpid(), episode.task["signal"])
    messages = [{"role": "user", "content": "1"}]
    await episode.client.chat.completions.create(model=episode.model, messages=messages, max_tokens=4)
    return 1.0
"""
REAL_TIME_SIGNAL = 40


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.timeout(240)
async def test_a_nameless_signal_and_a_lack_of_descriptors_end_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workflow.py").write_text(WORKFLOW)
    workflow = str(tmp_path / "workflow.py")
    config = load_config((), {"rollout.workers": "1"}, workflow=workflow, model={"path": str(NANO)})
    said: list[str] = []
    lacking = [OSError(errno.EMFILE, "Too many open files")] * 2
    pair = socket.socketpair

    def socketpair() -> Any:
        if len(said) == 2 and lacking:
            raise lacking.pop()
        return pair()

    monkeypatch.setattr(socket, "socketpair", socketpair)

    def answer(body: Json) -> Answer:
        return list(sound_states(4, prompt_tokens=len(body["input_ids"])))

    with anyio.fail_after(200):
        async with (
            scripted_server(answer) as server,
            sglang_engine([server.url]) as engine,
            open_rollout(config, None, engine, training=True, logs=tmp_path, say=said.append) as runner,
        ):
            failed = await runner.run({"signal": REAL_TIME_SIGNAL}, 1)
            finished = await runner.run({"signal": 0}, 2)
    assert said[0].startswith(f"worker 0 was killed by signal {REAL_TIME_SIGNAL}")
    assert "no worker of its own could be started" in (failed.error or "")
    assert "Too many open files" in (failed.error or "")
    assert (finished.reason, finished.error, lacking) == ("finished", None, [])
