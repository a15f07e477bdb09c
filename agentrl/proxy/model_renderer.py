"""Load the chat format of a model: its tokenizer, and the renderer that writes its conversations.

`model.renderer` names one ─► that renderer of the `renderers` library ───────┐
"auto": the renderer of config.json's model_type ─────────────────────────────┤
        none is known, it fails or differs ─► the model's own chat template ──┴─► ChatFormat
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from renderers import DefaultRenderer, DefaultRendererConfig, Renderer, config_from_name, create_renderer
from renderers.base import is_multimodal
from renderers.parsers import TOOL_PARSERS

from agentrl.config.proxy import ControlTokens
from agentrl.engine.model_facts import end_ids
from agentrl.errors import ConfigError, one_line
from agentrl.models import load_description
from agentrl.proxy.chat_format import ChatFormat, Message, Tool
from agentrl.proxy.control_tokens import control_tokens
from agentrl.proxy.tokenizer import LeanTokenizer
from agentrl.proxy.tool_parsers import ASKED, CALLED, TOOLS, tool_parser_of
from agentrl.system.imports import imported_later

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Processor:
    """The part of a Hugging Face processor that a renderer uses."""

    image_processor: Any


def _renderer_of(model_type: str) -> str:
    """Return the renderer of a `model_type`: transformers writes qwen3_vl and qwen3_5, renderers qwen3-vl and qwen3.5."""
    for name in (model_type, model_type.replace("_", "-"), model_type.replace("_", ".")):
        with suppress(KeyError, ValueError):
            config_from_name(name)
            return name
    return "default"


def load_chat_format(
    model_path: str | Path, renderer: str = "auto", *, control_tokens_in_text: ControlTokens = "text", **options: Any
) -> ChatFormat:
    """Return the chat format of the model at `model_path`.

    History keeps the model's thinking by default (`thinking_retention="all"`), so that no recorded token is dropped or rendered
    again.

    Args:
        model_path: The directory of the model.
        renderer: A name of the `renderers` library. "auto": by the `model_type`, or else its own chat template, which also comes
            before a renderer of its kind that differs from it, where tool calls can be read without that.
        control_tokens_in_text: What a control token that a message spells becomes: its text, or the token.
        options: For the renderer's config.

    Raises:
        ConfigError: The model's files cannot be loaded, or there is no such renderer, or it has no such option, or the model has no
            chat template, and no renderer knows it.
    """
    try:
        whole = load_description(model_path)
        with imported_later("torch"):
            from transformers import AutoTokenizer

            tokenizer: Any = AutoTokenizer.from_pretrained(model_path, config=whole)
    except Exception as error:  # transformers and tokenizers raise what they like
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(
            f"tokenizer and configuration of `model.path` = {str(model_path)!r} cannot be loaded: {what}"
        ) from error
    tokenizer.model_max_length = sys.maxsize  # a prompt that is too long is refused here, with its own error
    config = whole.get_text_config()
    named = renderer != "auto"
    if not named:
        renderer = _renderer_of(whole.model_type)
    if renderer == "default" and not tokenizer.chat_template:
        raise ConfigError(
            f"`model.path` = {str(model_path)!r} has no chat template, as base models have none: put one beside its tokenizer "
            "(chat_template.jinja), or name the renderer of a chat model in `model.renderer`, such as qwen3"
        )
    spelled = None
    if hasattr(tokenizer, "backend_tokenizer"):
        spelled = control_tokens(tokenizer) if control_tokens_in_text == "text" else None
        tokenizer = LeanTokenizer(tokenizer)
    options = {name.replace("-", "_"): value for name, value in options.items()}
    ends = end_ids(model_path, whole, tokenizer, template=True)
    try:
        if renderer == "default":
            chosen = _template(tokenizer, ends, options)
        else:
            settings = type(config_from_name(renderer))(**{"thinking_retention": "all", **options})
            chosen = create_renderer(tokenizer, settings)
    # Of a tokenizer of another model, renderers raise the first, or the third where their own cannot be downloaded.
    except (AssertionError, KeyError, RuntimeError, ValueError) as error:
        if named or renderer == "default" or isinstance(error, ValidationError) or not tokenizer.chat_template:
            raise ConfigError(f"`model.renderer` = {renderer!r} with options {options}: {error}") from error
        log.warning(f"the model's chat template is used, because its renderer {renderer!r} fails: {one_line(error)}")
        chosen = _template(tokenizer, ends, options)
    if tokenizer.chat_template and not isinstance(chosen, DefaultRenderer):
        chosen = _template_or_renderer(tokenizer, chosen, ends, named=named)
    if is_multimodal(chosen):
        from transformers import AutoImageProcessor

        # The form of it that needs no torchvision; servers cut images into as many patches, or refuse to go on.
        load: Any = AutoImageProcessor.from_pretrained
        images = _Processor(load(model_path, backend="pil"))
        chosen = type(chosen)(tokenizer, chosen.config, processor=images)
    if chosen.config.name == "gpt-oss":
        spelled = None  # its renderer encodes messages by itself, as text, and takes no mark
    is_template = isinstance(chosen, DefaultRenderer)
    own_ends = end_ids(model_path, whole, tokenizer, template=is_template) - {*chosen.get_stop_token_ids()}
    chat_format = ChatFormat(tokenizer, chosen, config.max_position_embeddings, own_ends, spelled)
    _ = chat_format.longest_token  # a large vocabulary takes a while to go through
    return chat_format


_COMPARED: list[tuple[str, list[Message], list[Tool] | None]] = [
    ("a question", [ASKED], None),
    ("a system message", [{"role": "system", "content": "Be brief."}, ASKED], None),
    ("a second question", [ASKED, {"role": "assistant", "content": "5"}, ASKED], None),
    ("a tool", [ASKED, CALLED, {"role": "tool", "tool_call_id": "call00001", "content": "5"}], TOOLS),
]
"""Conversations without reasoning, whose place in a history is a matter of its own (`thinking_retention`)."""


def _template(tokenizer: Any, ends: set[int], options: dict[str, Any], otherwise: str | None = None) -> Renderer:
    """Return the chat template as a renderer, with the parser that reads its tool calls."""
    template = create_renderer(tokenizer, DefaultRendererConfig(**options))
    if "tool_parser" in options or not (parser := tool_parser_of(template, tokenizer, ends) or otherwise):
        return template
    return create_renderer(tokenizer, DefaultRendererConfig(tool_parser=parser, **options))


def _template_or_renderer(tokenizer: Any, renderer: Renderer, ends: set[int], *, named: bool) -> Renderer:
    """Return the renderer of a model's kind, or the model's own template where it formats a conversation differently; and say so in the log."""
    kind = str(renderer.config.name)
    parser = next((parser for parser in (kind, kind.partition("-")[0]) if parser in TOOL_PARSERS), None)
    options = renderer.config.model_dump(exclude_unset=True, exclude={"name", "thinking_retention"})
    template: Any = _template(tokenizer, ends, options, parser)
    plain = create_renderer(tokenizer, type(renderer.config)(**options))
    for name, messages, tools in _COMPARED:
        with suppress(Exception):  # a template raises what it likes where it takes no such conversation
            ids = template.render_ids(messages, tools=tools, add_generation_prompt=True)
            if ids != plain.render_ids(messages, tools=tools, add_generation_prompt=True):
                # Of other kinds the renderer alone reads tool calls, or images.
                taken = not named and template.config.tool_parser is not None and not is_multimodal(renderer)
                used, other, setting = ("template", "renderer", kind) if taken else ("renderer", "template", "default")
                log.warning(
                    f"the chat template of {tokenizer.name_or_path} formats {name} differently from the renderer {kind!r}: the {used} is used, "
                    f'and `model.renderer` = "{setting}" uses the {other}'
                )
                return template if taken else renderer
    return renderer
