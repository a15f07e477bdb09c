"""One question, one reply, and another model says how good the reply is.

A task is one of `chat.py`, with "criteria" (what a good reply is like) and, as needed, "answer" (a reference that the
judge sees). The judge is any OpenAI endpoint: AGENTRL_JUDGE_BASE_URL, AGENTRL_JUDGE_MODEL and AGENTRL_JUDGE_API_KEY
name it, or "judge": {"base_url", "model", "api_key"} in the task. AGENTRL_JUDGE_CACHE names a file that keeps its
verdicts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import anyio
import openai
from anyio.to_thread import run_sync as in_thread
from pydantic import Field

from agentrl import Episode, Reward
from agentrl.errors import EpisodeError
from agentrl.machine.proxy_variables import is_loopback
from agentrl.workflows.chat import ChatTask, conversation

ASK = """Grade the reply to a question.

Question:
{question}

Reply:
{reply}
{reference}
Criteria: {criteria}

Answer with a line "Score: N", where N is a whole number from 0 (worthless) to 10 (perfect)."""
CRITERIA = "It is right, complete and clear."
RETRIES = 4
"""Of a request that fails; the client waits longer each time."""
READINGS = 3
"""How often a judge whose answer holds no score is asked."""


@dataclass
class Judge:
    """An LLM that scores. What it has scored it does not score again; who asks for what is being scored waits for it."""

    base_url: str
    model: str
    api_key: str = "-"
    cache: Path | None = None
    timeout_s: float = 120.0
    max_concurrent: int = 32
    asked: int = 0
    """Requests that were sent."""
    _scores: dict[str, float] = field(default_factory=dict)
    _locks: dict[str, anyio.Lock] = field(default_factory=dict)
    _loaded: bool = False

    def __post_init__(self) -> None:
        self._slots = anyio.Semaphore(self.max_concurrent)

    async def score(self, prompt: str) -> float:
        """Return the judge's score of a prompt, from 0 to 1.

        Raises:
            EpisodeError: It gives none.
            openai.OpenAIError: It fails.
        """
        key = hashlib.sha256(json.dumps([self.base_url, self.model, prompt]).encode()).hexdigest()
        async with self._locks.setdefault(key, anyio.Lock()):
            if not self._loaded:
                await in_thread(self._load)
            if key not in self._scores:
                async with self._slots:
                    self._scores[key] = await self._ask(prompt)
                await in_thread(self._keep, key)
        self._locks.pop(key, None)
        return self._scores[key]

    async def _ask(self, prompt: str) -> float:
        text = ""
        async with _client(self.base_url, self.api_key, self.timeout_s) as client:
            for reading in range(READINGS):
                self.asked += 1
                reply = await client.chat.completions.create(
                    model=self.model,
                    messages=[{"role": "user", "content": prompt}],
                    temperature=0.0 if reading == 0 else 1.0,
                )
                text = reply.choices[0].message.content or ""
                found = re.findall(r"[Ss]core:?\s*\**\s*(\d+(?:\.\d+)?)", text)
                if found and 0 <= float(found[-1]) <= 10:
                    return float(found[-1]) / 10
        raise EpisodeError(f"the judge {self.model} gave no score in {READINGS} answers, the last: {text[:200]!r}")

    def _load(self) -> None:
        if self.cache is not None and self.cache.exists():
            for line in self.cache.read_text().splitlines():
                try:
                    self._scores.update(json.loads(line))
                except ValueError:
                    continue  # torn by a crash
        self._loaded = True

    def _keep(self, key: str) -> None:
        if self.cache is not None:
            with self.cache.open("a") as file:
                file.write(json.dumps({key: self._scores[key]}) + "\n")


class JudgeTask(ChatTask):
    """What a line of the task file needs."""

    criteria: str = CRITERIA
    judge: dict[str, str] = Field(default_factory=dict)

    def check_scorer(self) -> None:
        """Check that there is a judge.

        Raises:
            ValueError: There is none.
        """
        try:
            judge_of(json.dumps(self.judge, sort_keys=True))
        except EpisodeError as error:
            raise ValueError(str(error)) from error


async def run(episode: Episode[Annotated[dict[str, Any], JudgeTask]]) -> Reward:
    """Return the judge's score."""
    task = episode.task
    messages = conversation(task)
    reply = await episode.client.chat.completions.create(model=episode.model, messages=messages)
    prompt = ASK.format(
        question=messages[-1]["content"],
        reply=reply.choices[0].message.content or "",
        reference=f"\nReference answer:\n{task['answer']}\n" if "answer" in task else "",
        criteria=task.get("criteria", CRITERIA),
    )
    return Reward(await judge_of(json.dumps(task.get("judge", {}), sort_keys=True)).score(prompt))


@lru_cache
def judge_of(settings: str) -> Judge:
    """Return the judge of a task.

    Args:
        settings: The task's, as JSON, completed by the environment's variables.

    Raises:
        EpisodeError: Neither names one.
    """
    given: dict[str, Any] = json.loads(settings)
    named = {
        name: given.get(name) or os.environ.get(f"AGENTRL_JUDGE_{name.upper()}")
        for name in ("base_url", "model", "api_key")
    }
    if not named["base_url"] or not named["model"]:
        raise EpisodeError("there is no judge; set AGENTRL_JUDGE_BASE_URL and AGENTRL_JUDGE_MODEL, or the task's judge")
    cache = os.environ.get("AGENTRL_JUDGE_CACHE")
    return Judge(named["base_url"], named["model"], named["api_key"] or "-", Path(cache) if cache else None)


@asynccontextmanager
async def _client(base_url: str, api_key: str, timeout_s: float) -> AsyncIterator[openai.AsyncOpenAI]:
    # Making a client reads certificates.
    make = lambda: openai.DefaultAsyncHttpxClient(timeout=timeout_s, trust_env=not is_loopback(base_url))  # noqa: E731
    async with await in_thread(make) as http:
        yield openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=RETRIES, http_client=http)
