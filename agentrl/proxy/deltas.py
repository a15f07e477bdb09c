"""Find what is new for a client in each state of a reply that grows."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.proxy.chat_format import AssistantMessage
from agentrl.proxy.completion import Delta, Json


@dataclass
class SentDeltas:
    """How much of a growing message the client has."""

    text: str = ""
    reasoning: str = ""
    tool_calls: int = 0
    """Calls that are whole, and that the client was told so."""
    arguments: str | None = None
    """Of the next call; None: it has not begun."""

    def growth(self, message: AssistantMessage, *, final: bool) -> list[Delta]:
        """Return the deltas from what was sent to `message`. Until the end, an unfinished character is held back.

        A call begins, gains pieces of its arguments, and is then told as a whole: dialects take of these what they have events for.
        """
        deltas: list[Delta] = []
        reasoning = message.reasoning or ""
        if piece := _piece(self.reasoning, reasoning, final=final):
            deltas.append(Delta(reasoning=piece))
            self.reasoning = reasoning
        if piece := _piece(self.text, message.content, final=final):
            deltas.append(Delta(text=piece))
            self.text = message.content
        for call in message.tool_calls[self.tool_calls :]:
            deltas += self._call_growth(
                call, final=final or call is not message.tool_calls[-1] or not message.unfinished
            )
        return deltas

    def _call_growth(self, call: Json, *, final: bool) -> list[Delta]:
        deltas: list[Delta] = []
        function = call["function"]
        begun = {**call, "function": {**function, "arguments": ""}}
        if self.arguments is None:
            self.arguments = ""
            deltas.append(Delta(begun_call=begun))
        if piece := _piece(self.arguments, function["arguments"], final=final):
            deltas.append(Delta(begun_call=begun, arguments=piece))
            self.arguments = function["arguments"]
        if final:
            deltas.append(Delta(tool_call=call))
            self.tool_calls, self.arguments = self.tool_calls + 1, None
        return deltas


def _piece(sent: str, text: str, *, final: bool) -> str:
    whole = final or not text.endswith("\N{REPLACEMENT CHARACTER}")
    return text[len(sent) :] if whole and text.startswith(sent) else ""
