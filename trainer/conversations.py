"""Conversations laid out as rollouts are, for supervised training.

messages, tools ─► prompt ─► reply, learned ─► next prompt ─► reply ... ─► a sequence
                                             └─ where the chat format drops what was said, as it may with reasoning, the next one
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from renderers import build_training_sample

from agentrl.episode import Task
from agentrl.errors import TaskFileError
from agentrl.proxy import ChatFormat
from agentrl.proxy.chat_format import Message
from agentrl.tasks.conversation_rows import read_conversation
from agentrl.trainer.packing import TrainingSequence


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
    messages, tools, weights = read_conversation(task, where)
    laid_out: list[tuple[list[int], list[bool]]] = []
    ids: list[int] = []
    reply: list[int] = []
    end = 0
    try:
        for index in (i for i, message in enumerate(messages) if message["role"] == "assistant" and i):
            prompt = chat_format.extend(ids[: -len(reply)], reply, messages[end:index], tools) if reply else None
            prompt = prompt or chat_format.render(messages[:index], tools)
            if not ids or prompt.ids[: len(ids)] != ids:
                laid_out.append(([], []))
            ids, mask = laid_out[-1]
            reply, end = _reply(messages[: index + 1], chat_format), index + 1
            mask += [False] * (len(prompt.ids) - len(ids)) + [weights[index] > 0] * len(reply)
            ids[:] = prompt.ids + reply
    except (ValueError, KeyError, TypeError) as error:
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


def _reply(messages: Sequence[Message], chat_format: ChatFormat) -> list[int]:
    """Return the ids that the model says for the last message, up to its end. Of what comes before, the question alone is rendered."""
    question = next((message for message in reversed(messages) if message["role"] == "user"), None)
    shown = [question, messages[-1]] if question else list(messages)
    sample = build_training_sample(
        chat_format.renderer, shown, role_to_mask=lambda message: message is shown[-1], ensure_final_stop=True
    )
    ids = [token for token, said in zip(sample.token_ids, sample.loss_mask, strict=True) if said]
    # Of a template that is not known token by token, what opens the reply counts as said; a prompt ends with it.
    prompt, before = (chat_format.renderer.render_ids(shown[:-1], add_generation_prompt=end) for end in (True, False))
    opening = prompt[len(before) :]
    same = next((n for n, pair in enumerate(zip(opening, ids)) if pair[0] != pair[1]), min(len(opening), len(ids)))  # noqa: B905
    if same == len(opening):
        ids = ids[same:]
    elif chat_format.opens_thought(prompt):  # and the template leaves thoughts out
        thought = shown[-1].get("reasoning_content") or ""
        ids = chat_format.tokenizer.encode(f"{thought}\n</think>\n\n", add_special_tokens=False) + ids[same:]
    ends = [index for index, token in enumerate(ids, 1) if token in chat_format.stop_token_ids]
    return ids[: ends[-1]] if ends else ids
