"""Load the chat format of a model: its tokenizer, the renderer that writes its conversations, and the parser of its tool calls.

`model.renderer` names one ─► that renderer of the `renderers` library ───────┐
"auto": the renderer of config.json's model_type ─────────────────────────────┤
        none is known, it fails or differs ─► the model's own chat template ──┴─► ChatFormat

A chat template's parser is the one whose reading of a call that the template writes is that call.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import ValidationError
from renderers import DefaultRenderer, DefaultRendererConfig, Renderer, config_from_name, create_renderer
from renderers.base import is_multimodal
from renderers.parsers import TOOL_PARSERS

from agentrl.engine.model_facts import end_ids
from agentrl.errors import ConfigError, one_line
from agentrl.models import load_description
from agentrl.proxy.chat_format import ChatFormat, Message, Tool
from agentrl.proxy.tokenizer import NO_CONTROL_TOKENS, LeanTokenizer
from agentrl.system.imports import imported_later

log = logging.getLogger(__name__)

ASKED: Message = {"role": "user", "content": "What is 2 + 3?"}
_ARGUMENTS = {"a": 2, "b": "three"}
# Templates of Mistral's take no other ids than of nine letters and digits.
_CALL = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": json.dumps(_ARGUMENTS)}}
CALLED: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_TYPES = {"a": {"type": "integer", "description": "One."}, "b": {"type": "string", "description": "Another."}}
_ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": _TYPES}}
TOOLS: list[Tool] = [{"type": "function", "function": _ADD}]
_COMPARED: list[tuple[str, list[Message], list[Tool] | None]] = [
    ("a question", [ASKED], None),
    ("a system message", [{"role": "system", "content": "Be brief."}, ASKED], None),
    ("a second question", [ASKED, {"role": "assistant", "content": "5"}, ASKED], None),
    ("a tool", [ASKED, CALLED, {"role": "tool", "tool_call_id": "call00001", "content": "5"}], TOOLS),
]
"""Conversations without reasoning, whose place in a history is a matter of its own (`thinking_retention`)."""


def load_chat_format(model_path: str | Path, renderer: str = "auto", **options: Any) -> ChatFormat:
    """Return the chat format of the model at `model_path`.

    History keeps the model's thinking by default (`thinking_retention="all"`), so that no recorded token is dropped or rendered
    again.

    Args:
        model_path: The directory of the model.
        renderer: A name of the `renderers` library. "auto": by the `model_type`, or else its own chat template, which also comes
            before a renderer of its kind that differs from it, where tool calls can be read without that.
        options: For the renderer's config.

    Raises:
        ConfigError: The model's files cannot be loaded, or there is no such renderer, or it has no such option, or the model has no
            chat template, and no renderer knows it.
    """
    try:
        whole = load_description(model_path)
        with imported_later("torch"):
            from transformers import AutoTokenizer

            tokenizer: Any = LeanTokenizer(AutoTokenizer.from_pretrained(model_path, config=whole))
    except Exception as error:  # transformers and tokenizers raise what they like
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(
            f"tokenizer and configuration of `model.path` = {str(model_path)!r} cannot be loaded: {what}"
        ) from error
    named = renderer != "auto"
    if not named:
        renderer = _renderer_of(whole.model_type)
    if renderer == "default" and not tokenizer.chat_template:
        raise ConfigError(
            f"`model.path` = {str(model_path)!r} has no chat template, as base models have none: put one beside its tokenizer "
            "(chat_template.jinja), or name the renderer of a chat model in `model.renderer`, such as qwen3"
        )
    options = {name.replace("-", "_"): value for name, value in options.items()}
    ends = end_ids(model_path, whole, tokenizer, template=True)
    try:
        chosen = _known_renderer(tokenizer, renderer, options, ends, named=named)
    # Of a tokenizer of another model, renderers raise the first, or the third where their own cannot be downloaded.
    except (AssertionError, KeyError, RuntimeError, ValueError) as error:
        if named or renderer == "default" or isinstance(error, ValidationError) or not tokenizer.chat_template:
            raise ConfigError(f"`model.renderer` = {renderer!r} with options {options}: {error}") from error
        log.warning(f"the model's chat template is used, because its renderer {renderer!r} fails: {one_line(error)}")
        chosen = _template(tokenizer, ends, options)
    if is_multimodal(chosen):
        from transformers import AutoImageProcessor

        # The form of it that needs no torchvision; servers cut images into as many patches, or refuse to go on.
        load: Any = AutoImageProcessor.from_pretrained
        images: Any = SimpleNamespace(image_processor=load(model_path, backend="pil"))
        chosen = type(chosen)(tokenizer, chosen.config, processor=images)
    # The renderer of gpt-oss encodes messages by itself, as text, and takes no mark.
    spelled = NO_CONTROL_TOKENS if chosen.config.name == "gpt-oss" else tokenizer.control_tokens
    is_template = isinstance(chosen, DefaultRenderer)
    own_ends = end_ids(model_path, whole, tokenizer, template=is_template) - {*chosen.get_stop_token_ids()}
    context_length = whole.get_text_config().max_position_embeddings
    chat_format = ChatFormat(tokenizer, chosen, context_length, own_ends, spelled)
    _ = chat_format.longest_token  # a large vocabulary takes a while to go through
    return chat_format


def _renderer_of(model_type: str) -> str:
    """Return the renderer of a `model_type`: transformers writes qwen3_vl and qwen3_5, renderers qwen3-vl and qwen3.5."""
    for name in (model_type, model_type.replace("_", "-"), model_type.replace("_", ".")):
        with suppress(KeyError, ValueError):
            config_from_name(name)
            return name
    return "default"


def _known_renderer(
    tokenizer: Any, name: str, options: dict[str, Any], ends: Collection[int], *, named: bool
) -> Renderer:
    """Return a renderer by its name, or the model's own template where that formats a conversation differently; and say so in the log."""
    if name == "default":
        return _template(tokenizer, ends, options)
    kind = type(config_from_name(name))
    renderer = create_renderer(tokenizer, kind(**{"thinking_retention": "all", **options}))
    if not tokenizer.chat_template:
        return renderer
    options = {key: value for key, value in options.items() if key != "thinking_retention"}
    parser = next((parser for parser in (name, name.partition("-")[0]) if parser in TOOL_PARSERS), None)
    template: Any = _template(tokenizer, ends, options, parser)
    plain = create_renderer(tokenizer, kind(**options))
    for conversation, messages, tools in _COMPARED:
        with suppress(Exception):  # a template raises what it likes where it takes no such conversation
            ids = template.render_ids(messages, tools=tools, add_generation_prompt=True)
            if ids != plain.render_ids(messages, tools=tools, add_generation_prompt=True):
                # Of other kinds the renderer alone reads tool calls, or images.
                taken = not named and template.config.tool_parser is not None and not is_multimodal(renderer)
                used, other, setting = ("template", "renderer", name) if taken else ("renderer", "template", "default")
                log.warning(
                    f"the chat template of {tokenizer.name_or_path} formats {conversation} differently from the renderer {name!r}: the {used} is used, "
                    f'and `model.renderer` = "{setting}" uses the {other}'
                )
                return template if taken else renderer
    return renderer


def _template(tokenizer: Any, ends: Collection[int], options: dict[str, Any], otherwise: str | None = None) -> Renderer:
    """Return the chat template as a renderer, with the parser that reads its tool calls."""
    template = create_renderer(tokenizer, DefaultRendererConfig(**options))
    if "tool_parser" in options or not (parser := _tool_parser(template, tokenizer, ends) or otherwise):
        return template
    return create_renderer(tokenizer, DefaultRendererConfig(tool_parser=parser, **options))


def _tool_parser(template: Renderer, tokenizer: Any, ends: Collection[int]) -> str | None:
    """Return the name of the parser that reads the tool calls of a chat template, up to an id that ends the turn; None where none does."""
    said: list[int] = []
    with suppress(Exception):  # a template raises what it likes where it takes no such conversation
        prompt = template.render_ids([ASKED], tools=TOOLS, add_generation_prompt=True)
        said = template.render_ids([ASKED, CALLED], tools=TOOLS)
        said = said[next((n for n, pair in enumerate(zip(prompt, said)) if pair[0] != pair[1]), len(prompt)) :]  # noqa: B905
    said = said[: next((n for n, token in enumerate(said) if token in ends), len(said))]
    for name, parser in TOOL_PARSERS.items():
        with suppress(Exception):
            if [(call.name, call.arguments) for call in parser(tokenizer).extract(said)[1]] == [("add", _ARGUMENTS)]:
                return str(name)
    return None
