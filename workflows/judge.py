"""The scorer "judge" of `chat.py`: another model says how good a reply is.

The judge is any OpenAI endpoint, which AGENTRL_JUDGE_BASE_URL, AGENTRL_JUDGE_MODEL and AGENTRL_JUDGE_API_KEY name. Of the task it sees the prompt,
"criteria" (what a good reply is like) and "answer" (a reference), where they are. A judge that fails, or gives no score, fails the episode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import openai
from anyio.to_thread import run_sync as in_thread

from agentrl import Reward
from agentrl.errors import EpisodeError, WorkflowError
from agentrl.system.this_process import is_loopback

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
TIMEOUT_S = 120.0
TEMPERATURES = (0.0, 1.0, 1.0)
"""With which a judge is asked whose answer holds no score."""


async def judged(reply: str, task: Mapping[str, Any]) -> Reward:
    """Return the judge's score of a reply, from 0 to 1, with what it said as the detail `judge`.

    Raises:
        EpisodeError: It gives none.
        WorkflowError: There is no judge.
        openai.OpenAIError: It fails.
    """
    url, model = judge_of_variables()
    asked = task.get("messages") or task.get("prompt", "(none)")
    prompt = ASK.format(
        question=asked if isinstance(asked, str) else asked[-1]["content"],
        reply=reply,
        reference=f"\nReference answer:\n{task['answer']}\n" if "answer" in task else "",
        criteria=task.get("criteria", CRITERIA),
    )
    key, text = os.environ.get("AGENTRL_JUDGE_API_KEY") or "-", ""
    make_http = partial(openai.DefaultAsyncHttpxClient, timeout=TIMEOUT_S, trust_env=not is_loopback(url))
    async with await in_thread(make_http) as http:  # it reads certificates
        client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=RETRIES, http_client=http)
        for temperature in TEMPERATURES:
            answer = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": prompt}], temperature=temperature
            )
            text = answer.choices[0].message.content or ""
            found = re.findall(r"[Ss]core:?\s*\**\s*(\d+(?:\.\d+)?)", text)
            if found and float(found[-1]) <= 10:
                return Reward(float(found[-1]) / 10, details={"judge": text})
    raise EpisodeError(f"the judge {model} gave no score in {len(TEMPERATURES)} answers, the last: {text[:200]!r}")


def judge_of_variables() -> tuple[str, str]:
    """Return the address and the model of the judge.

    Raises:
        WorkflowError: The environment names none.
    """
    url, model = (os.environ.get(f"AGENTRL_JUDGE_{name}", "") for name in ("BASE_URL", "MODEL"))
    if not url or not model:
        raise WorkflowError("no judge: set AGENTRL_JUDGE_BASE_URL and AGENTRL_JUDGE_MODEL")
    return url, model
