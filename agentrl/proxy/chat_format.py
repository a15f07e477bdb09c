"""Messages to tokens and back, through the `renderers` library.

One `ChatFormat` a model. It adds to a renderer only what the OpenAI API has and a renderer has not: forced tool calls
(`tool_choice`), stop strings, and the ids that tool calls carry.
"""

from __future__ import annotations

import bisect
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

from pydantic_core import to_json
from renderers import DefaultRenderer, Renderer
from renderers.base import (
    ParsedResponse,
    ParsedToolCall,
    RenderedTokens,
    ToolCallParseStatus,
    is_multimodal,
    merge_chat_template_kwargs,
)

from agentrl.errors import one_line
from agentrl.proxy.tokenizer import NO_CONTROL_TOKENS, marked, shown_tools
from agentrl.proxy.tool_calls import arguments_text, begun_call, typed_call
from agentrl.record.tokens import ImageSpan

Message = dict[str, Any]
Tool = dict[str, Any]
_REMEMBERED_VARIANTS = 16
"""Variants of a chat format that are remembered, by the options of its template."""
_GENERATION_PROMPT = 8
"""How many ids at a prompt's end may be the opening of the model's thinking."""
_UNREAD_TOOLS = "no parser reads the tool calls of the model's chat template: describe the tools in a system message, or name one in `model.renderer_options.tool_parser`"
_NO_TOOLS = "the model's chat template shows it no tools: describe them in a system message, or name a renderer that has them in `model.renderer`"


@dataclass
class AssistantMessage:
    """A message of the model's: text, reasoning apart from it, and tool calls in OpenAI's form."""

    content: str
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    stopped_by: str | None = None
    """The stop string that ended it."""
    reasoning_tokens: int = 0
    unfinished: bool = False
    """Whether its last tool call has no end: it is growing, or was cut off."""

    def to_json(self) -> Message:
        """OpenAI's `message`."""
        content = self.content if self.content or not self.tool_calls else None
        added = {"tool_calls": self.tool_calls, "reasoning_content": self.reasoning}
        message = {"role": "assistant", "content": content, "refusal": None}
        return message | {name: value for name, value in added.items() if value}


@dataclass(frozen=True)
class Rendered:
    """Prompt ids, and the images that the rendered messages brought; their places count from the first id."""

    ids: list[int]
    images: tuple[ImageSpan, ...] = ()


@dataclass(frozen=True)
class ChatFormat:
    """The chat format of one model."""

    tokenizer: Any
    renderer: Renderer
    context_length: int
    own_ends: Set[int] = frozenset()
    """Ids that end the model's turn, of which the renderer does not know."""
    control_tokens: re.Pattern[str] = NO_CONTROL_TOKENS
    """The pattern of the control tokens that messages spell, to be encoded as text."""
    template_options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The options that a request changed in the chat template, by name."""

    def with_template(self, options: Mapping[str, Any]) -> ChatFormat:
        """Return the format with other options of its chat template, such as `enable_thinking`; itself where they change nothing.

        Raises:
            ValueError: The template has no such option, or not with that value.
        """
        return self._variants(json.dumps(options, sort_keys=True)) if options else self

    @cached_property
    def _variants(self) -> Callable[[str], ChatFormat]:
        return lru_cache(_REMEMBERED_VARIANTS)(self._variant)

    def _variant(self, written: str) -> ChatFormat:
        options = json.loads(written)
        own: Any = self.renderer
        # The renderer of a template hands them to a function, which has arguments of its own.
        if self.is_template and (reserved := options.keys() & self.tokenizer.template_arguments):
            raise ValueError(f"{min(reserved)!r} is no option of the template")
        try:
            config = merge_chat_template_kwargs(own.config, options)
        except (TypeError, ValueError) as error:
            raise ValueError(one_line(error)) from None
        if config == own.config:
            return self
        images = {"processor": own._processor} if self.takes_images else {}
        return replace(self, renderer=type(own)(self.tokenizer, config, **images), template_options=options)

    def render(self, messages: Sequence[Message], tools: list[Tool] | None, *, answered: bool = True) -> Rendered:
        """Return the prompt of a conversation that starts here, up to where the model speaks.

        Args:
            messages: The conversation.
            tools: The tools that are shown in it.
            answered: Whether the model's answer is read, and so the calls in it.

        Raises:
            ValueError: The chat template refuses it, or leaves its tools out, or nothing reads their calls.
        """
        messages = marked(messages, self.control_tokens)
        tools = shown_tools(to_json(tools), self.control_tokens) if tools else None
        if not self.takes_images:
            ids = list(self.renderer.render_ids(messages, tools=tools, add_generation_prompt=True))
            # The model has not spoken yet: once a conversation, as this renders it a second time.
            begins = tools and all(message["role"] != "assistant" for message in messages)
            if begins and self.is_template and ids == self._ids_without_tools(messages):
                raise ValueError(_NO_TOOLS)
            if tools and answered and self.tool_parser is None:
                raise ValueError(_UNREAD_TOOLS)
            return Rendered(ids)
        rendered = self.renderer.render(messages, tools=tools, add_generation_prompt=True)
        return Rendered(list(rendered.token_ids), _image_spans(rendered, messages))

    def _ids_without_tools(self, messages: Sequence[Message]) -> list[int] | None:
        with suppress(Exception):  # the template may insist on them, and raises what it likes
            return list(self.renderer.render_ids(messages, tools=None, add_generation_prompt=True))
        return None

    def extend(
        self, prompt_ids: list[int], output_ids: list[int], messages: Sequence[Message], tools: list[Tool] | None
    ) -> Rendered | None:
        """Return the next prompt: `prompt_ids` + `output_ids`, unchanged, + the new messages. None if the format cannot."""
        messages = marked(messages, self.control_tokens)
        bridged = self.renderer.bridge_to_next_turn(prompt_ids, output_ids, messages, tools=tools or None)
        if bridged is None:
            return None
        ids = list(bridged.token_ids)
        past = len(prompt_ids) + len(output_ids)
        kept = ids[: len(prompt_ids)] == prompt_ids and ids[len(prompt_ids) : past] == output_ids
        return Rendered(ids, _image_spans(bridged, messages)) if kept else None

    @property
    def is_template(self) -> bool:
        """Whether the model's own chat template renders, which writes whole conversations alone."""
        return isinstance(self.renderer, DefaultRenderer)

    @property
    def tool_parser(self) -> str | None:
        """The name of the parser or renderer that reads the model's tool calls; None: nothing does."""
        own: Any = self.renderer
        return own.config.tool_parser if self.is_template else str(own.config.name)

    @property
    def takes_images(self) -> bool:
        """Whether messages may hold images."""
        return bool(is_multimodal(self.renderer))

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens included."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    @cached_property
    def longest_token(self) -> int | None:
        """Bytes of text that one token may stand for, at most. None: any number, as an unknown word is one token."""
        whole = json.loads(self.tokenizer.backend_tokenizer.to_str())
        if self.tokenizer.unk_token_id is not None and not whole["model"].get("byte_fallback"):
            return None
        longest = max(len(token.encode()) for token in self.tokenizer.get_vocab())
        # A normalizer joins characters: NFC makes one of three bytes' accents, at most.
        return longest * 3 if whole.get("normalizer") else longest

    @property
    def stop_token_ids(self) -> list[int]:
        """Ids that end the model's turn."""
        return [*self.renderer.get_stop_token_ids(), *sorted(self.own_ends)]

    @property
    def summary(self) -> str:
        """How the model's turns end and its tool calls are read, as the start of a run or an evaluation says it."""
        ends = " or ".join(self.decode([end]) for end in self.stop_token_ids)
        reader = f"the parser {self.tool_parser!r}" if self.tool_parser else "no parser"
        return f"the model's turns end with {ends}; its tool calls are read by {reader}"

    def forced_call(self, name: str | None) -> list[int]:
        """Return ids that make the model's turn a call of tool `name` (None: of any tool), for formats with JSON in `<tool_call>`.

        Raises:
            ValueError: The format is another.
        """
        opening = self.special("<tool_call>")
        if opening is None or not self._has_json_calls:
            raise ValueError(f"{type(self.renderer).__name__} has no JSON tool calls to force")
        # No trailing space: vocabularies join a space to what follows it, so a model never saw one stand alone.
        text = '\n{"name":' if name is None else f'\n{{"name": {json.dumps(name)}, "arguments":'
        return [opening, *self.tokenizer.encode(text, add_special_tokens=False)]

    @property
    def _has_json_calls(self) -> bool:
        names = ("Qwen3Renderer", "Qwen3VL", "PrimeQwen3")
        return (self.is_template and self.tool_parser == "qwen3") or type(self.renderer).__name__.startswith(names)

    def special(self, token: str) -> int | None:
        """Return the id of a special token; None where the vocabulary has none."""
        token_id = self.tokenizer.convert_tokens_to_ids(token)
        return token_id if isinstance(token_id, int) and token_id != self.tokenizer.unk_token_id else None

    def parse(
        self,
        output_ids: list[int],
        tools: list[Tool] | None,
        *,
        stop: Sequence[str] = (),
        tool_call_ids: list[str] | None = None,
        growing: bool = False,
        prefill: str = "",
        prompt_ids: list[int] | None = None,
    ) -> AssistantMessage:
        """Return the message in `output_ids` (forced ids included), which followed `prompt_ids`: these may end with an open thought. A malformed tool call stays in the content as text, unless it has begun as a call of one of `tools`.

        It is what follows `prefill`, the text that `output_ids` begin with.

        `tool_call_ids` names the tool calls and is extended as needed, so that parsing a growing reply keeps their names.
        While a reply is `growing`, what may yet become a tool call or a stop string is left out. What is there of a call that
        has begun only grows, and a call that is not whole is never JSON (`agentrl.proxy.tool_calls`).
        """
        parsed = self.parsed(output_ids, tools, prompt_ids)
        if parsed is None:
            return self.plain(output_ids, stop=stop, growing=growing, prefill=prefill)
        # Some renderers leave the blank lines after a thought.
        thinks = parsed.reasoning_content or self.opens_thought(prompt_ids or [])
        content = parsed.content.lstrip("\n") if thinks else parsed.content
        if growing and not parsed.tool_calls and not content.strip():
            content = ""  # a thought may follow, before which blanks are no content
        names = tool_call_ids if tool_call_ids is not None else []
        calls: list[dict[str, Any]] = []
        unfinished, cut_by = False, None
        for call in parsed.tool_calls if not growing or self._has_left_thought(output_ids, prompt_ids or []) else ():
            read = self._read(call, output_ids, tools, growing=growing)
            if read is not None:
                name, arguments, is_whole = read
                if not is_whole:
                    unfinished = call.status == ToolCallParseStatus.UNCLOSED_BLOCK
                    arguments, cut_by = _until(stop, arguments, growing=growing)
                if len(calls) == len(names):
                    names.append(call.id or self._call_id())
                function = {"name": name, "arguments": arguments}
                calls.append({"id": names[len(calls)], "type": "function", "function": function})
            elif not growing:
                start, end = call.token_span or (0, 0)
                content += self.decode(output_ids[start:end]) if end else call.raw
        content, stopped_by = _until(stop, _after(prefill, content), growing=growing)
        close = self.special("</think>") if parsed.reasoning_content else None
        thought = 0 if close is None else output_ids.index(close) + 1 if close in output_ids else len(output_ids)
        # Some renderers strip a whole thought and not a growing one.
        reasoning = parsed.reasoning_content and parsed.reasoning_content.strip()
        return AssistantMessage(content, reasoning, calls, stopped_by or cut_by, thought, unfinished)

    def _read(
        self, call: ParsedToolCall, output_ids: list[int], tools: list[Tool] | None, *, growing: bool
    ) -> tuple[str, str, bool] | None:
        """Return the name of a call, its arguments, and whether these are whole; None: it is no call, or none yet."""
        if not tools:
            return None
        if not self._has_json_calls:
            call = typed_call(call, tools)
        elif call.token_span is not None:
            start, end = call.token_span
            inside = output_ids[start + 1 : end - (call.status != ToolCallParseStatus.UNCLOSED_BLOCK)]
            begun = begun_call(self.decode(inside), {tool["function"]["name"] for tool in tools})
            if begun is not None:
                whole = begun.whole_as(call.name, call.arguments)
                return begun.name, whole or begun.arguments, whole is not None
        text = arguments_text(call.name, call.arguments)
        if call.name is None or text is None or call.status != ToolCallParseStatus.OK:
            return None
        # Of Llama's and Mistral's calls, what follows yet may make a text.
        may_go_on = growing and call.token_span is not None and call.token_span[1] == len(output_ids)
        return None if may_go_on else (call.name, text, True)

    def _call_id(self) -> str:
        """Return an id of a tool call; Mistral's templates take nine letters and digits alone."""
        return secrets.token_hex(5)[:9] if self.tool_parser == "mistral" else f"call_{secrets.token_hex(12)}"

    def parsed(
        self, output_ids: list[int], tools: list[Tool] | None, prompt_ids: list[int] | None
    ) -> ParsedResponse | None:
        """Return what the renderer reads in a reply; None: nothing.

        Where a call makes the reader of JSON fail, as 5,000 digits do, that call is all of what follows.
        """
        if output_ids and output_ids[-1] in self.stop_token_ids:
            output_ids = output_ids[:-1]
        if self.is_template and self.opens_thought(prompt_ids or []):
            # The library sees it after ChatML's header alone.
            prompt_ids = self.tokenizer.encode("<think>", add_special_tokens=False)
        read = partial(self.renderer.parse_response, tools=tools or None, prompt_ids=prompt_ids)
        with suppress(RecursionError, ValueError):
            return read(output_ids)
        opening = self.special("<tool_call>")
        for start in reversed([place for place, token in enumerate(output_ids) if token == opening]):
            with suppress(RecursionError, ValueError):
                parsed = read(output_ids[: start + 1])
                for call in parsed.tool_calls[-1:]:
                    call.token_span = start, len(output_ids)
                return parsed
        return None

    def opens_thought(self, prompt_ids: list[int]) -> bool:
        """Return whether a prompt ends with the opening of the model's thinking, and blanks."""
        opening, last = self.special("<think>"), prompt_ids[: -_GENERATION_PROMPT - 1 : -1]
        return opening in last and not self.decode(last[: last.index(opening)][::-1]).strip()

    def _has_left_thought(self, output_ids: list[int], prompt_ids: list[int]) -> bool:
        """Return whether the reply has ended its reasoning: a call inside it is one only if nothing closes it later."""
        opened = self.opens_thought(prompt_ids) or self.special("<think>") in output_ids
        return not opened or self.special("</think>") in output_ids

    def plain(
        self, output_ids: list[int], *, stop: Sequence[str] = (), growing: bool = False, prefill: str = ""
    ) -> AssistantMessage:
        """Return the text in `output_ids`, of a raw completion: nothing in it has a meaning, but the token that ends it."""
        ends = bool(output_ids) and output_ids[-1] in self.stop_token_ids
        content = _after(prefill, self.decode(output_ids[:-1] if ends else output_ids))
        content, stopped_by = _until(stop, content, growing=growing)
        return AssistantMessage(content, stopped_by=stopped_by)

    def tokens_to_stop(self, output_ids: list[int], stop: Sequence[str]) -> int:
        """Return how many tokens of a reply there are up to the first stop string, and with it; all where there is none."""

        def stopped(count: int) -> bool:
            text = self.decode(output_ids[:count])
            return any(string in text for string in stop)

        whole = len(output_ids)
        return bisect.bisect_left(range(whole), True, key=stopped) if stop and stopped(whole) else whole


def _until(stops: Sequence[str], text: str, *, growing: bool) -> tuple[str, str | None]:
    """`text` before the first of `stops`, and which it was. Of a growing text, what may become one is left out too."""
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if found:
        end, stop = min(found)
        return text[:end], stop
    begun = 0
    for stop in stops if growing else ():
        begun = max(begun, next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0))
    return text[: len(text) - begun], None


def _after(prefill: str, content: str) -> str:
    """Return what follows `prefill` in a text. Renderers may strip the text, and the model may have said nothing yet."""
    begun = next((begun for begun in (prefill, prefill.lstrip()) if content.startswith(begun)), None)
    if begun is not None:
        return content[len(begun) :]
    return "" if prefill.strip().startswith(content.strip()) else content


def _image_spans(rendered: RenderedTokens, messages: Sequence[Message]) -> tuple[ImageSpan, ...]:
    if rendered.multi_modal_data is None:
        return ()
    places = rendered.multi_modal_data.mm_placeholders.get("image", [])
    parts = [
        p for m in messages if isinstance(m.get("content"), list) for p in m["content"] if p["type"] == "image_url"
    ]
    pairs = zip(parts, places, strict=True)
    return tuple(ImageSpan(part["image_url"]["url"], place.offset, place.length) for part, place in pairs)
