"""The turns of an episode as JSON values: what was said in messages, and every token of a reply with its quantities."""

from __future__ import annotations

from typing import Any

from agentrl.models.text import TokenText
from agentrl.record.trajectory import Turn
from agentrl.store.read_episode import RunEpisode
from agentrl.viewer.messages import MessageReader, ReadMessage

_FACTS = ("role", "left_out", "trained", "truncated", "failed", "reward", "temperature", "alterations", "model")
"""The fields of a turn that are shown as they are."""


def turns_of(episode: RunEpisode, reader: MessageReader | None) -> list[dict[str, Any]]:
    """Return the turns of an episode, in the order in which their calls ended.

    Args:
        episode: The episode.
        reader: What finds messages in its tokens; None: each prompt and each reply is one text.

    Raises:
        ConfigError: The model's tokenizer is not there any more.
    """
    record, advantages = episode.weighed()
    returns, figures = episode.returns(record), episode.token_figures
    index_of = {id(turn): index for index, turn in enumerate(record.turns)}
    turns: list[dict[str, Any]] = []
    for index, turn in enumerate(record.turns):
        decode = episode.source.text.decode  # an endpoint's model has no tokenizer here, and no turns
        parent = None if turn.parent is None else index_of[id(turn.parent)]
        before = turn.parent.output_ids if turn.parent else []
        messages = reader.prompt(turn.prompt_ids, before) if reader else [ReadMessage("?", decode(turn.prompt_ids))]
        advantage = advantages[index] if advantages else None
        reply = reply_of(turn, reader, episode.source.text, advantage)
        if figures and any(value is not None for value in figures.proximal[index]):
            columns = {"proximal": figures.proximal, "entropy": figures.entropy, "advantages": figures.advantage}
            reply["tokens"] |= {name: values[index] for name, values in columns.items()}
        turns.append(
            {name: getattr(turn, name) for name in _FACTS}
            | {
                "index": index,
                "parent": parent,
                "return": returns[index],
                "advantage": advantage,
                "images": [image.url for image in turn.images],
                "messages": [vars(message) for message in messages],
                "reply": reply,
                "prompt_tokens": len(turn.prompt_ids),
                "prompt_text": decode(turn.prompt_ids),
            }
        )
    return turns


def reply_of(
    turn: Turn, reader: MessageReader | None, text: TokenText, advantage: float | None = None
) -> dict[str, Any]:
    """Return what a turn says, as `ReadMessage` has it, with its tokens.

    Args:
        turn: The turn.
        reader: As for `turns_of`.
        text: The text of its tokens.
        advantage: That of the turn; None: it has none.
    """
    ids = turn.output_ids
    reply = reader.reply(ids, turn.prompt_ids) if reader else ReadMessage("?", text.decode(ids))
    return vars(reply) | {"tokens": _tokens(turn, advantage, text.pieces(ids))}


def _tokens(turn: Turn, advantage: float | None, text: list[str]) -> dict[str, Any]:
    count = len(turn.output_ids)
    return {
        "ids": turn.output_ids,
        "text": text,
        "logprobs": turn.logprobs,
        "versions": [span.version for span in turn.versions for _ in range(span.start, span.end)],
        "loss_mask": [turn.trained and not turn.left_out] * count,
        "advantages": None if advantage is None else [advantage] * count,
        "proximal": None,
        "entropy": None,
    }
