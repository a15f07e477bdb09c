"""What the programs of this folder share: a key for each conversation, a tool, and messages that tell the scripted model what to say.

A program runs in a process and an environment of its own, and imports nothing of agentrl. It prints what came of each conversation.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Callable
from typing import Any

URL = os.environ["URL"]
ANSWER = "The answer is 42."
BERLIN: tuple[str, dict[str, Any]] = ("weather", {"place": "Berlin"})
ROME: tuple[str, dict[str, Any]] = ("weather", {"place": "Rome"})
DESCRIPTION = "The weather of a place."
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}


def say(*steps: Any) -> str:
    """A message that tells the model what its replies are: each step a text, or a list of tools with their arguments."""
    return f"Go. #plan {json.dumps(steps)}"


ONE = say([BERLIN], ANSWER)
TWO = say([BERLIN], [ROME], ANSWER)
BOTH = say([BERLIN, ROME], ANSWER)
THINKING = say("<think>\nI think of Berlin.\n</think>\n\n" + ANSWER)


def weather(place: str) -> str:
    """The weather of a place.

    Args:
        place: Name of a city.
    """
    return f"sunny in {place}"


def order(answer: str, **values: Any) -> str:
    """A structured output that has what it should, as the answer of a conversation."""
    found = {name: value for name, value in values.items() if value is not None}
    return answer if found == {"place": "Berlin", "degrees": 20} else f"{found} is no report"


REPORT = {"place": "Berlin", "degrees": 20}


def hold(**conversations: Callable[[str], Any]) -> None:
    """Hold each conversation with a key of its own, and print what came of it as the last line."""
    keys = json.loads(os.environ["KEYS"])
    assert keys.keys() == conversations.keys(), sorted(keys.keys() ^ conversations.keys())
    said = {}
    for name, converse in conversations.items():
        try:
            answer = converse(keys[name])
            said[name] = str(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)
        except Exception as error:
            error.add_note(f"in the conversation {name!r}")
            raise
    print("\n" + json.dumps(said))
