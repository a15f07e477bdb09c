"""`SimulatedUser`: a model that plays the user of a `ServiceEnv`, with a prompt and tools of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openai import AsyncOpenAI, omit

from agentrl.envs.service_env import Call
from agentrl.errors import EpisodeError

END = "###END###"
"""What the user says when the conversation is over."""
MAX_CALLS = 10
"""Of the user's tools between two messages of the agent."""
PROMPT = f"""You play a customer who talks with a service agent. Your instruction:

{{instruction}}

Say one thing at a time, in your own words, and do not give everything away at once: what the agent needs, it asks for. Know nothing that the
instruction or your tools do not say. When what you want is done, or the agent has said that it cannot be, answer with {END} and nothing else."""
GREETING = "Hello, how can I help you?"


class SimulatedUser:
    """A model in the place of the user.

    Args:
        client: Of the endpoint that serves it.
        model: Its name there.
        prompt: Its system prompt, with `{instruction}` where that goes. It must say that `###END###` ends the conversation.
    """

    def __init__(self, client: AsyncOpenAI, model: str, prompt: str = PROMPT) -> None:
        self._client = client
        self._model = model
        self._prompt = prompt
        self._tools: Sequence[dict[str, Any]] = ()
        self._call: Call | None = None
        # Any: openai types each role's message on its own.
        self._messages: list[Any] = []

    async def begin(self, instruction: str, tools: Sequence[dict[str, Any]], call: Call) -> str:
        """Return what the user says first; see `User.begin`.

        Raises:
            EpisodeError: It ends the conversation instead.
            openai.OpenAIError: Its endpoint fails.
        """
        self._tools, self._call = tools, call
        self._messages = [{"role": "system", "content": self._prompt.replace("{instruction}", instruction)}]
        opening = await self.answer(GREETING)
        if opening is None:
            raise EpisodeError(f"the simulated user {self._model!r} ends the conversation before it has said anything")
        return opening

    async def answer(self, said: str) -> str | None:
        """Return what the user answers, after what it looks up with its tools; None: it says nothing, or that it has ended."""
        self._messages.append({"role": "user", "content": said})
        for calls_left in range(MAX_CALLS, -1, -1):
            reply = await self._client.chat.completions.create(
                model=self._model,
                messages=self._messages,
                tools=self._tools if self._tools and calls_left else omit,  # type: ignore[arg-type]
            )
            message = reply.choices[0].message.model_dump(exclude_none=True)
            self._messages.append(message)
            calls = message.get("tool_calls", [])
            if not calls or self._call is None:
                text = (message.get("content") or "").strip()
                return None if not text or END in text else text
            for call in calls:
                content = await self._call(call["function"])
                self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return None
