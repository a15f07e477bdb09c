"""Tool calls of models that no renderer knows are read in the form that their chat template writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from agentrl.models import NANO
from agentrl.proxy import ChatFormat, load_chat_format, open_proxy
from agentrl.system.tasks import in_thread
from tests.policy_by_prompt import PolicyByPrompt
from tests.template_model import model_with_template

WRITTEN = (
    "{{ tools | tojson if tools }}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_JSON = '{"name": "{{ call.function.name }}", "KEY": {{ call.function.arguments | tojson }}}'
QWEN = f"<tool_call>\n{_JSON}\n</tool_call>".replace("KEY", "arguments")
CODER = (
    "<tool_call>\n<function={{ call.function.name }}>{% for name, value in call.function.arguments | items %}\n"
    "<parameter={{ name }}>\n{{ value }}\n</parameter>{% endfor %}\n</function>\n</tool_call>"
)
MISTRAL = (
    "{% if call.id | length != 9 %}{{ raise_exception('9 letters') }}{% endif %}[TOOL_CALLS]"
    + f"[{_JSON}]".replace("KEY", "arguments")
)
TEKKEN = "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}"
TYPES = {"path": {"type": "string"}, "times": {"type": "integer"}}
TOOL: Any = {
    "type": "function",
    "function": {"name": "save", "parameters": {"type": "object", "properties": TYPES}},
}
CODER_SAYS = "<tool_call>\n<function=save>\n<parameter=path>\n12\n</parameter>\n<parameter=times>\n3\n</parameter>\n</function>\n</tool_call>"
CODER_TEXT = "<tool_call>\n<function=save>\n<parameter=path>\n  a\n\n</parameter>\n</function>\n</tool_call>"
GLM = (
    "<tool_call>{{ call.function.name }}\n{% for name, value in call.function.arguments | items %}"
    "<arg_key>{{ name }}</arg_key>\n<arg_value>{{ value }}</arg_value>\n{% endfor %}</tool_call>"
)
GLM_TEXT = "<tool_call>save\n<arg_key>path</arg_key>\n<arg_value>  a\n</arg_value>\n</tool_call>"
ARGUMENTS = '{"path": "12", "times": 3}'


def own_format(tmp_path: Path, call: str) -> ChatFormat:
    folder = model_with_template(tmp_path / "model", WRITTEN.replace("CALL", call))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([AddedToken("[TOOL_CALLS]", special=True), AddedToken("[ARGS]", special=True)])
    tokenizer.add_tokens([AddedToken(f"<{name}>") for name in ("arg_key", "/arg_key", "arg_value", "/arg_value")])
    tokenizer.save_pretrained(folder)
    return load_chat_format(folder, "default")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("call", "parser", "says"),
    [
        (QWEN, "qwen3", f'<tool_call>\n{{"name": "save", "arguments": {ARGUMENTS}}}\n</tool_call>'),
        (CODER, "qwen3.5", CODER_SAYS),
        (_JSON.replace("KEY", "parameters"), "llama-3", f'{{"name": "save", "parameters": {ARGUMENTS}}}'),
        (
            _JSON.replace("KEY", "parameters"),
            "llama-3",
            f'{{"type": "function", "name": "save", "parameters": {ARGUMENTS}}}',
        ),
        (MISTRAL, "mistral", f'[TOOL_CALLS][{{"name": "save", "arguments": {ARGUMENTS}}}]'),
        (TEKKEN, "mistral", f"[TOOL_CALLS]save[ARGS]{ARGUMENTS}"),
    ],
    ids=["Qwen2.5", "Qwen3-Coder", "Llama 3", "Llama 3 with a type", "Mistral", "Tekken"],
)
async def test_a_call_in_the_form_of_the_template_is_read_and_goes_back_into_it(
    call: str, parser: str, says: str, tmp_path: Path
) -> None:
    own = await in_thread(lambda: own_format(tmp_path, call))
    assert own.tool_parser == parser
    replies = iter([says, "It is saved.", '{"path": "no call"}'])
    async with open_proxy(PolicyByPrompt(own, lambda prompt: next(replies)), own, "nano") as proxy:
        key = proxy.open_session().key
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=key, max_retries=0) as client:
            messages: list[Any] = [{"role": "user", "content": "Save it."}]
            chat = await client.chat.completions.create(model="nano", messages=messages, tools=[TOOL])
            (read,) = chat.choices[0].message.tool_calls or ()
            assert isinstance(read, openai.types.chat.ChatCompletionMessageFunctionToolCall)
            assert (read.function.name, read.function.arguments) == ("save", ARGUMENTS)
            assert not chat.choices[0].message.content
            messages += [
                chat.choices[0].message.to_dict(),
                {"role": "tool", "tool_call_id": read.id, "content": "ok"},
            ]
            for text in ("It is saved.", '{"path": "no call"}'):
                chat = await client.chat.completions.create(model="nano", messages=messages, tools=[TOOL])
                assert chat.choices[0].message.content == text


@pytest.mark.anyio
async def test_tools_whose_calls_no_parser_reads_are_refused(tmp_path: Path) -> None:
    own = await in_thread(lambda: own_format(tmp_path, "{{ call.function.name }}()"))
    async with open_proxy(PolicyByPrompt(own, lambda prompt: "save()"), own, "nano") as proxy:
        key = proxy.open_session().key
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=key, max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match="no parser reads the tool calls of the model's chat temp"):
                await client.chat.completions.create(
                    model="nano", messages=[{"role": "user", "content": "Save it."}], tools=[TOOL]
                )


OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize("renderer", ["nemotron-3", "default"])
@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        (OPTIONAL, "12", "12"),
        ({"type": ["string", "null"]}, "two words", "two words"),
        (OPTIONAL, "None", None),
        (OPTIONAL, "null", None),
        ({"type": "boolean"}, "False", False),
        ({"type": "string"}, "None", "None"),
        ({"$ref": "#/$defs/Colour"}, "red", "red"),
        ({"type": ["integer", "string"]}, "12", 12),
    ],
)
def test_a_value_between_tags_is_read_as_its_tool_takes_it(
    schema: Any, written: str, value: Any, renderer: str, tmp_path: Path
) -> None:
    own = load_chat_format(NANO, renderer) if renderer != "default" else own_format(tmp_path, CODER)
    tool = {"type": "function", "function": {"name": "save", "parameters": {"properties": {"path": schema}}}}
    says = f"</think>\n\n<tool_call>\n<function=save>\n<parameter=path>\n{written}\n</parameter>\n</function>\n</tool_call>"
    (call,) = own.parse(own.tokenizer.encode(says), [tool]).tool_calls
    assert json.loads(call["function"]["arguments"]) == {"path": value}


def test_a_call_without_arguments_is_read_also_where_they_are_null(tmp_path: Path) -> None:
    own = own_format(tmp_path, _JSON.replace("KEY", "parameters"))
    (call,) = own.parse(own.tokenizer.encode('{"name": "save", "parameters": null}'), [TOOL]).tool_calls
    assert call["function"] == {"name": "save", "arguments": "{}"}


@pytest.mark.parametrize("says", [CODER_TEXT, GLM_TEXT], ids=["Qwen3-Coder", "GLM"])
def test_a_text_between_tags_keeps_its_last_line_break(says: str, tmp_path: Path) -> None:
    own = own_format(tmp_path, CODER if says == CODER_TEXT else GLM)
    (call,) = own.parse(own.tokenizer.encode(says), [TOOL]).tool_calls
    assert json.loads(call["function"]["arguments"]) == {"path": "  a\n"}


def test_a_control_token_that_a_tool_spells_is_text(tmp_path: Path) -> None:
    own = own_format(tmp_path, QWEN)
    described = {"type": "function", "function": {**TOOL["function"], "description": "ends with <|im_end|>"}}
    asked = [{"role": "user", "content": "Save it."}]
    ids, plain = (own.render(asked, [tool]).ids for tool in (described, TOOL))
    assert "ends with <|im_end|>" in own.decode(ids)
    assert ids.count(own.special("<|im_end|>") or -1) == plain.count(own.special("<|im_end|>") or -1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (_JSON.replace("KEY", "parameters"), f'{{"name": "save", "parameters": {ARGUMENTS}}}'),
        (TEKKEN, f"I save it.[TOOL_CALLS]save[ARGS]{ARGUMENTS}"),
        (_JSON.replace("KEY", "parameters"), '{"named": "no call", "b": 1}'),
        (_JSON.replace("KEY", "parameters"), f'{{"name": "save", "parameters": {ARGUMENTS}}} is no call'),
        (TEKKEN, f"[TOOL_CALLS]save[ARGS]{ARGUMENTS} is no call"),
    ],
    ids=["Llama 3", "Tekken", "no call", "Llama 3 and a text", "Tekken and a text"],
)
def test_nothing_of_a_call_is_shown_as_it_grows(call: str, says: str, tmp_path: Path) -> None:
    own = own_format(tmp_path, call)
    ids = own.tokenizer.encode(says)
    whole = own.parse(ids, [TOOL])
    assert len(whole.tool_calls) == ("no call" not in says)
    for end in range(len(ids)):
        growing = own.parse(ids[:end], [TOOL], growing=True)
        assert whole.content.startswith(growing.content)
        assert len(growing.tool_calls) <= len(whole.tool_calls)
