"""Find what is new for a client in each state of a reply that grows."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.proxy.chat_format import AssistantMessage
from agentrl.proxy.completion import Delta


@dataclass
class SentDeltas:
    """How much of a growing message the client has."""

    text: str = ""
    reasoning: str = ""
    tool_calls: int = 0

    def growth(self, message: AssistantMessage, *, final: bool) -> list[Delta]:
        """Return the deltas from what was sent to `message`. Until the end, an unfinished character is held back."""
        deltas: list[Delta] = []
        reasoning = message.reasoning or ""
        if piece := _piece(self.reasoning, reasoning, final=final):
            deltas.append(Delta(reasoning=piece))
            self.reasoning = reasoning
        if piece := _piece(self.text, message.content, final=final):
            deltas.append(Delta(text=piece))
            self.text = message.content
        deltas += [Delta(tool_call=call) for call in message.tool_calls[self.tool_calls :]]
        self.tool_calls = len(message.tool_calls)
        return deltas


def _piece(sent: str, text: str, *, final: bool) -> str:
    whole = final or not text.endswith("\N{REPLACEMENT CHARACTER}")
    return text[len(sent) :] if whole and text.startswith(sent) else ""
