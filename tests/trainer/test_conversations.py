"""Conversations to learn from are laid out token by token as a rollout of them is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TaskFileError
from agentrl.proxy import ChatFormat, load_chat_format
from agentrl.trainer.conversations import training_sequences
from agentrl.trainer.packing import TrainingSequence
from tests.template_model import model_with_template

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
PLAIN_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str, thought: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": thought, **fields}


def learned(sequence: TrainingSequence, chat_format: ChatFormat) -> str:
    return chat_format.decode(sequence.token_ids[sequence.loss_mask].tolist())


def test_every_turn_keeps_its_reasoning_as_in_a_rollout(nano_format: ChatFormat) -> None:
    result = {"role": "tool", "tool_call_id": "a", "content": "2"}
    turns = [reply("", "use it", tool_calls=[CALL]), reply("2", "done"), reply("3", "one more")]
    messages = [user("1 + 1?"), turns[0], result, turns[1], user("and 1?"), turns[2]]
    (sequence,) = training_sequences({"messages": messages, "tools": TOOLS}, nano_format, "here")

    texts = [
        '<think>\nuse it\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call><|im_end|>',
        "<think>\ndone\n</think>\n\n2<|im_end|>",
        "<think>\none more\n</think>\n\n3<|im_end|>",
    ]
    said = [nano_format.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    prompt = nano_format.render(messages[:1], TOOLS)
    for ids, new in zip(said, ([result], [user("and 1?")]), strict=False):
        extended = nano_format.extend(prompt.ids, ids, new, TOOLS)
        assert extended is not None
        prompt = extended
    assert sequence.token_ids.tolist() == prompt.ids + said[-1]
    assert learned(sequence, nano_format) == "".join(texts)
    parsed = nano_format.parse(said[0], TOOLS)
    assert (parsed.reasoning, parsed.tool_calls[0]["function"]) == ("use it", CALL["function"])


def test_a_turn_of_weight_0_is_context(nano_format: ChatFormat) -> None:
    row = {"messages": [user("a"), reply("b", "x", weight=0), user("c"), reply("d", "y")]}
    (sequence,) = training_sequences(row, nano_format, "here")
    assert learned(sequence, nano_format) == "<think>\ny\n</think>\n\nd<|im_end|>"
    assert "<think>\nx\n</think>\n\nb" in nano_format.decode(sequence.token_ids.tolist())


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("thought", ["x", ""])
def test_a_reply_after_a_prompt_that_opens_a_thought_closes_it(thought: str, keeps: bool, tmp_path: Path) -> None:
    """Some templates show thoughts, such as Qwen's, and some never do, such as DeepSeek-R1's."""
    always = PLAIN_TEMPLATE.replace(
        "m.reasoning_content and loop.last" if keeps else "loop.last", "m.role == 'assistant'" if keeps else "false"
    )
    opening = always.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    chat_format = load_chat_format(model_with_template(tmp_path / "model", opening), "default")
    (sequence,) = training_sequences({"messages": [user("a"), reply("b", thought)]}, chat_format, "here")
    prompt = chat_format.render([user("a")], None).ids
    assert sequence.token_ids[: len(prompt)].tolist() == prompt
    assert learned(sequence, chat_format) == f"{thought}\n</think>\n\nb<|im_end|>"


def test_where_a_template_drops_what_was_thought_each_turn_is_learned_after_the_prompt_that_it_had(
    tmp_path: Path,
) -> None:
    """So is a rollout under such a template: a prompt of its own for each turn."""
    chat_format = load_chat_format(model_with_template(tmp_path / "model", PLAIN_TEMPLATE), "default")
    plain = [user("a"), {"role": "assistant", "content": "b"}, user("c"), {"role": "assistant", "content": "d"}]
    (whole,) = training_sequences({"messages": plain}, chat_format, "here")
    assert learned(whole, chat_format) == "b<|im_end|>d<|im_end|>"
    thought = [user("a"), reply("b", "x"), user("c"), reply("d", "y")]
    first, second = training_sequences({"messages": thought}, chat_format, "here")
    assert learned(first, chat_format) == "<think>\nx\n</think>\n\nb<|im_end|>"
    assert learned(second, chat_format) == "<think>\ny\n</think>\n\nd<|im_end|>"
    prompt = chat_format.render(thought[:3], None).ids
    assert second.token_ids[: len(prompt)].tolist() == prompt


def test_what_opens_a_conversation_is_context(nano_format: ChatFormat) -> None:
    row = {"messages": [reply("Hello.", ""), user("a"), reply("b", "x")]}
    (sequence,) = training_sequences(row, nano_format, "here")
    assert learned(sequence, nano_format) == "<think>\nx\n</think>\n\nb<|im_end|>"
    assert nano_format.decode(sequence.token_ids.tolist()).startswith("<|im_start|>assistant\nHello.<|im_end|>")


def test_what_does_not_fit_is_refused(nano_format: ChatFormat) -> None:
    with pytest.raises(TaskFileError, match=r"line 3 has \d+ tokens, and the context is 1024"):
        training_sequences({"messages": [user("a"), reply("1 " * 3000, "x")]}, nano_format, "line 3")


def test_calls_that_no_parser_reads_are_learned(tmp_path: Path) -> None:
    own = "{{ tools | tojson if tools }}" + PLAIN_TEMPLATE.replace(
        "{{ m.content }}", "{{ m.content }}{{ 'add(1)' if m.tool_calls }}"
    )
    chat_format = load_chat_format(model_with_template(tmp_path / "model", own), "default")
    row = {"messages": [user("a"), reply("", "", tool_calls=[CALL])], "tools": TOOLS}
    (sequence,) = training_sequences(row, chat_format, "here")
    assert learned(sequence, chat_format) == "add(1)<|im_end|>"


THINKS_NOT = PLAIN_TEMPLATE.replace("m.reasoning_content and loop.last", "false")


def test_a_thought_that_the_template_leaves_out_is_refused_and_learned_in_the_content(tmp_path: Path) -> None:
    chat_format = load_chat_format(model_with_template(tmp_path / "model", THINKS_NOT), "default")
    with pytest.raises(TaskFileError, match=r"line 3 .* leaves out what was thought: write it as"):
        training_sequences({"messages": [user("a"), reply("b", "x")]}, chat_format, "line 3")
    (sequence,) = training_sequences({"messages": [user("a"), reply("<think>x</think>b", "")]}, chat_format, "here")
    assert learned(sequence, chat_format) == "<think>x</think>b<|im_end|>"


def test_a_thought_in_the_content_is_learned_where_the_prompt_opens_it(tmp_path: Path) -> None:
    """DeepSeek-R1's templates drop from a content what was thought."""
    drops = THINKS_NOT.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    opens = drops.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    chat_format = load_chat_format(model_with_template(tmp_path / "model", opens), "default")
    (sequence,) = training_sequences({"messages": [user("a"), reply("<think>x</think>b", "")]}, chat_format, "here")
    assert learned(sequence, chat_format) == "x\n</think>\n\nb<|im_end|>"


def test_a_thought_in_the_content_that_the_template_cuts_off_is_refused(tmp_path: Path) -> None:
    """QwQ's and DeepSeek-V3.1's templates do, also where the prompt opens none."""
    cuts = THINKS_NOT.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    chat_format = load_chat_format(model_with_template(tmp_path / "model", cuts), "default")
    with pytest.raises(TaskFileError, match=r"line 3 .* leaves out what was thought"):
        training_sequences({"messages": [user("a"), reply("<think>2</think>1 + 1 = 2", "")]}, chat_format, "line 3")


def test_a_call_that_the_template_leaves_out_is_refused(tmp_path: Path) -> None:
    """Else its reply would be learned as an empty one."""
    own = model_with_template(tmp_path / "model", "{{ tools | tojson if tools }}" + PLAIN_TEMPLATE)
    row = {"messages": [user("a"), reply("", "", tool_calls=[CALL])], "tools": TOOLS}
    with pytest.raises(TaskFileError, match=r"line 3 .* leaves out `tool_calls`: write them in the content"):
        training_sequences(row, load_chat_format(own, "default"), "line 3")


@pytest.mark.parametrize("shown", ["</think>", "<think></think>"])
def test_a_reply_without_a_thought_shuts_the_one_that_its_prompt_opens_once(shown: str, tmp_path: Path) -> None:
    """GLM-4.7's and Nemotron 3's templates show an empty thought otherwise than they open one."""
    shows = THINKS_NOT.replace("{{ m.content }}", "{{ SHOWN if m.role == 'assistant' }}{{ m.content }}")
    opens = shows.replace("SHOWN", repr(shown)).replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    chat_format = load_chat_format(model_with_template(tmp_path / "model", opens), "default")
    (sequence,) = training_sequences({"messages": [user("a"), reply("b", "")]}, chat_format, "here")
    assert learned(sequence, chat_format) == "</think>b<|im_end|>"


@pytest.mark.parametrize("thought", ["x", ""])
def test_a_reply_that_the_template_leaves_in_an_open_thought_shuts_it(thought: str, tmp_path: Path) -> None:
    """Nemotron Nano 2's shows the last reply as what follows <think>, without what was thought."""
    leaves = THINKS_NOT.replace("{{ m.content }}", "{{ '<think>\n' if m.role == 'assistant' }}{{ m.content }}")
    opens = leaves.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    chat_format = load_chat_format(model_with_template(tmp_path / "model", opens), "default")
    (sequence,) = training_sequences({"messages": [user("a"), reply("b", thought)]}, chat_format, "here")
    assert learned(sequence, chat_format) == f"{thought}\n</think>\n\nb<|im_end|>"


def test_a_call_is_learned_where_the_template_shows_it_beside_tools_alone(tmp_path: Path) -> None:
    """Hermes 3 has one template for conversations with tools, and another for those without, which shows no calls."""
    calls = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + PLAIN_TEMPLATE
    own = calls.replace("<|im_end|>", "{{ m.tool_calls[0].function.name if m.tool_calls }}<|im_end|>")
    chat_format = load_chat_format(model_with_template(tmp_path / "model", own), "default")
    row = {"messages": [user("a"), reply("", "", tool_calls=[CALL])], "tools": TOOLS}
    (sequence,) = training_sequences(row, chat_format, "here")
    assert learned(sequence, chat_format) == "add<|im_end|>"


def test_a_header_that_a_prompt_goes_on_from_is_there_once(tmp_path: Path) -> None:
    """Apriel's prompts end with the first words of a thought, which its history does not repeat."""
    leads = PLAIN_TEMPLATE.replace("assistant\n{% endif %}", "assistant\nI think:\n{% endif %}")
    chat_format = load_chat_format(model_with_template(tmp_path / "model", leads), "default")
    (sequence,) = training_sequences({"messages": [user("a"), reply("b", "")]}, chat_format, "here")
    assert learned(sequence, chat_format) == "b<|im_end|>"


@pytest.mark.parametrize("renderer", ["qwen3", "default"])
def test_a_reply_after_a_prompt_that_shuts_a_thought_has_no_other(renderer: str, tmp_path: Path) -> None:
    shuts = THINKS_NOT.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")
    chat_format = load_chat_format(model_with_template(tmp_path / "model", shuts), renderer, enable_thinking=False)
    (sequence,) = training_sequences({"messages": [user("a"), reply("b", "")]}, chat_format, "here")
    assert learned(sequence, chat_format) == "b<|im_end|>"
    assert chat_format.decode(sequence.token_ids.tolist()).count("<think>") == 1


@pytest.mark.parametrize(
    ("after", "ends"),
    [
        ("<|im_end|>\n{% if loop.last and m.role == 'assistant' %}<|endoftext|>{% endif %}", ["<|im_end|>"] * 2),
        ("", ["<|im_start|>", "<|im_start|>"]),
    ],
)
def test_the_first_end_is_learned_also_one_that_begins_the_next_message(
    after: str, ends: list[str], tmp_path: Path
) -> None:
    """Phi's templates write two, and GLM's none."""
    own = model_with_template(tmp_path / "model", PLAIN_TEMPLATE.replace("<|im_end|>\n", after))
    known = load_chat_format(own, "default")
    starts, whole = known.special("<|im_start|>"), known.special("<|endoftext|>")
    chat_format = replace(known, own_ends={*known.own_ends, whole, *([] if after else [starts])})
    messages = [user("a"), reply("b", ""), user("c"), reply("d", "")]
    (sequence,) = training_sequences({"messages": messages}, chat_format, "here")
    assert learned(sequence, chat_format) == f"b{ends[0]}d{ends[1]}"
