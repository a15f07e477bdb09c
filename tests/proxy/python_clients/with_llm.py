"""Simon Willison's `llm`: chains of tool calls, conversations, schemas, by its library and by its program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from asking import ANSWER, BOTH, ONE, REPORT, THINKING, TWO, URL, hold, order, say, weather
from llm.default_plugins.openai_models import AsyncChat, Chat
from pydantic import BaseModel


class Report(BaseModel):
    place: str
    degrees: int


OPTIONS: Any = {"model_name": "gpt-5.4", "api_base": f"{URL}/v1", "supports_tools": True, "supports_schema": True}


def converse(key: str, stream: bool, *questions: str) -> str:
    talk = Chat("gpt-5.4", **OPTIONS).conversation(tools=[weather])
    return [talk.chain(question, key=key, stream=stream, system="Be brief.").text() for question in questions][-1]


async def asynchronous(key: str) -> str:
    return await AsyncChat("gpt-5.4", **OPTIONS).chain(BOTH, tools=[weather], key=key).text()


def structured(key: str) -> str:
    said = Chat("gpt-5.4", **OPTIONS).prompt(say(json.dumps(REPORT)), schema=Report, key=key, stream=False)
    return order(ANSWER, **json.loads(said.text()))


def by_program(key: str, *options: str) -> str:
    """The command, with a model of its own configuration and one of its built-in tools."""
    folder = Path(os.environ["HOME"]) / "llm"
    folder.mkdir(exist_ok=True)
    model = {
        "model_id": "mine",
        "model_name": "gpt-5.4",
        "api_base": f"{URL}/v1",
        "api_key_name": "mine",
        "supports_tools": True,
    }
    (folder / "extra-openai-models.yaml").write_text(json.dumps([model]))
    (folder / "keys.json").write_text(json.dumps({"mine": key}))
    command = [sys.executable, "-m", "llm", "-m", "mine", "-T", "llm_version", *options]
    environment = {**os.environ, "LLM_USER_PATH": str(folder)}
    done = subprocess.run(
        [*command, say([("llm_version", {})], ANSWER)], env=environment, capture_output=True, text=True, timeout=100
    )
    return done.stdout + done.stderr


hold(
    whole=lambda key: converse(key, False, ONE),
    stream=lambda key: converse(key, True, TWO),
    parallel=lambda key: converse(key, False, BOTH),
    memory=lambda key: converse(key, True, ONE, ONE),
    thinking=lambda key: converse(key, True, THINKING, ONE),
    asynchronous=asynchronous,
    structured=structured,
    program=lambda key: by_program(key),
    program_whole=lambda key: by_program(key, "--no-stream"),
)
