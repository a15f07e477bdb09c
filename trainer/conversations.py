"""Conversations laid out as rollouts are, for supervised training.

messages, tools ─► prompt ─► reply, learned ─► next prompt ─► reply ... ─► a sequence
                                             └─ where the chat format drops what was said, as it may with reasoning, the next one
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from renderers import build_training_sample

from agentrl.episode import Task
from agentrl.errors import TaskFileError
from agentrl.proxy import ChatFormat
from agentrl.proxy.chat_format import Message, Tool
from agentrl.tasks.conversation_rows import read_conversation
from agentrl.trainer.packing import TrainingSequence

_ASKED: Message = {"role": "user", "content": "?"}


def training_sequences(task: Task, chat_format: ChatFormat, where: str) -> list[TrainingSequence]:
    """Make training sequences, whose advantages are 1, of a conversation.

    Args:
        task: The conversation.
        chat_format: How it becomes tokens.
        where: What an error calls it.

    Returns:
        One sequence, or more where the chat format drops from a prompt what was said before it.

    Raises:
        TaskFileError: It is no conversation, or none that fits the context.
    """
    messages, tools, weights, empty_thoughts = read_conversation(task, where)
    laid_out: list[tuple[list[int], list[bool]]] = []
    ids: list[int] = []
    reply: list[int] = []
    end = 0
    try:
        for index in (i for i, message in enumerate(messages) if message["role"] == "assistant" and i):
            prompt = chat_format.extend(ids[: -len(reply)], reply, messages[end:index], tools) if reply else None
            prompt = prompt or chat_format.render(messages[:index], tools, answered=False)
            if not ids or prompt.ids[: len(ids)] != ids:
                laid_out.append(([], []))
            ids, mask = laid_out[-1]
            reply, end = _reply(messages[: index + 1], tools[:1], chat_format, empty_thoughts), index + 1
            mask += [False] * (len(prompt.ids) - len(ids)) + [weights[index] > 0] * len(reply)
            ids[:] = prompt.ids + reply
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TaskFileError(f"{where} cannot be rendered: {type(error).__name__}: {error}") from error
    size = max((len(ids) for ids, _ in laid_out), default=0)
    if size > chat_format.context_length:
        raise TaskFileError(f"{where} has {size} tokens, and the context is {chat_format.context_length}")
    return [
        TrainingSequence(
            token_ids=torch.tensor(ids),
            loss_mask=torch.tensor(mask),
            behaviour_logprobs=torch.zeros(len(ids)),
            versions=torch.zeros(len(ids), dtype=torch.long),
            temperatures=torch.ones(len(ids)),
            advantages=torch.ones(len(ids)),
            rewards=torch.zeros(len(ids)),
            turn_index=torch.zeros(len(ids), dtype=torch.long),
        )
        for ids, mask in laid_out
        if any(mask)
    ]


def _reply(messages: Sequence[Message], tools: list[Tool], chat_format: ChatFormat, empty_thoughts: bool) -> list[int]:
    """Return the ids that the model says for the last message, up to its end. Of what comes before, the question alone is rendered, beside a tool where there are any.

    With `empty_thoughts`, a reply without a thought begins with the empty one that the template writes there, if it writes one.

    Raises:
        ValueError: The template leaves out what was thought or called.
    """
    question = next((message for message in reversed(messages) if message["role"] == "user"), None)
    before, last = [question] if question else list(messages[:-1]), messages[-1]
    render = partial(chat_format.renderer.render_ids, before, tools=tools or None)
    ended, prompt = (render(add_generation_prompt=more) for more in (False, True))
    opening, opens = prompt[len(ended) :], chat_format.opens_thought(prompt)
    content, thought = last.get("content") or "", last.get("reasoning_content") or ""
    if not thought and "</think>" in content:
        thought, _, content = content.lstrip().removeprefix("<think>").partition("</think>")
        if opens:
            last = {**last, "reasoning_content": thought.strip("\n"), "content": content.lstrip("\n")}
    thought, ids = thought.strip(), _said(before, last, tools, chat_format)
    # Of a template that is not known token by token, what opens the reply counts as said; a prompt ends with it, or with its thought.
    thinking = chat_format.special("<think>")
    start = opening.index(thinking) if thinking in opening else len(opening)
    begun = opening[start:]
    ids = ids[max(n for n in range(start + 1) if ids[:n] == opening[:n]) :]  # a prompt may say more than is repeated
    shuts = not opens or chat_format.special("</think>") in ids
    if shuts and ids[: len(begun)] == begun:
        ids = ids[len(begun) :]
    elif opens:  # the template leaves thoughts out, or one begins within a token
        text, opened = chat_format.decode(ids), chat_format.decode(begun)
        shut = text.removeprefix(opened).removeprefix("<think>")
        shows = text.startswith((opened, "<think>", "</think>")) and "</think>" in text
        said = shut if shows else f"{thought}\n</think>\n\n{shut}"
        ids = chat_format.tokenizer.encode(said, add_special_tokens=False)
    closing = chat_format.special("</think>")
    if not thought and not empty_thoughts and closing in ids:
        ids = ids[ids.index(closing) + 1 :]
        while ids and not chat_format.decode(ids[:1]).strip():
            ids = ids[1:]
    # As their tokens spell them: some tokenizers compose accents.
    spelt = (chat_format.tokenizer.encode(words, add_special_tokens=False) for words in (thought, content))
    text, thought, content = map(chat_format.decode, (ids, *spelt))
    if thought and text.count(thought) <= content.count(thought):
        raise ValueError(
            "the chat template leaves out what was thought: write it as `reasoning_content`, or in the content as <think>...</think>, "
            "whichever it shows, or let it show thoughts by `model.renderer_options`, such as enable_thinking = true"
        )
    if not all(call["function"]["name"] in text for call in last.get("tool_calls") or ()):
        raise ValueError("the chat template leaves out `tool_calls`: write them in the content")
    ends = [index for index, token in enumerate(ids, 1) if token in chat_format.stop_token_ids]
    if not ends:  # the next message's beginning ends it, such as GLM's, or else the tokenizer's own end
        follows = {"role": "tool", "tool_call_id": "call00001", "content": ""} if last.get("tool_calls") else _ASKED
        plain = [*before, {**last, "content": "?", "reasoning_content": None}]
        done, more = (chat_format.renderer.render_ids(shown) for shown in (plain, [*plain, follows]))
        begun = [token for token in more[len(done) :][:1] if token in chat_format.stop_token_ids]
        return ids + (begun or chat_format.stop_token_ids[:1])
    while len(ends) > 1 and not chat_format.decode(ids[ends[-2] : ends[-1] - 1]).strip():
        ends.pop()
    return ids[: ends[-1]]


def _said(before: Sequence[Message], last: Message, tools: list[Tool], chat_format: ChatFormat) -> list[int]:
    sample = build_training_sample(
        chat_format.renderer,
        [*before, last],
        role_to_mask=lambda message: message is last,
        tools=tools or None,
        ensure_final_stop=True,
    )
    return [token for token, said in zip(sample.token_ids, sample.loss_mask, strict=True) if said]
