"""Exports of a run: JSON lines, one HTML page that needs nothing else, which notebooks show too, and conversations to learn from.

jsonl   an episode a line, with its turns, as the API gives them
html    a page without a script, which shows what a model wrote as text and loads nothing
sft     a conversation a line, as `agentrl sft` reads it: every conversation of the agent's own, up to each of its ends

A notebook shows the page of a run, an evaluation or an episode in a frame.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from agentrl.evaluation.figures import Evaluation
from agentrl.proxy.http_messages import strict_json
from agentrl.run.open_run import Run
from agentrl.store.read_episode import RunEpisode
from agentrl.viewer.queries import ShownRun
from agentrl.viewer.transcript import turns_of

FORMATS = {
    "jsonl": (".jsonl", "application/jsonl; charset=utf-8"),
    "html": (".html", "text/html; charset=utf-8"),
    "sft": (".sft.jsonl", "application/jsonl; charset=utf-8"),
}
"""The end of a file's name, and its type."""
SHOWN_EPISODES = 10
"""Episodes of a run that a notebook shows."""
BUFFERED = 1000
"""Parts of the template that make a piece of a page."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Characters that no page holds, that a terminal obeys, or that turn the order of what follows."""


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _shown(value: object) -> object:
    """Return a value of a page as text, which is then escaped; what the template itself wrote stays as it is."""
    if isinstance(value, Markup):
        return value
    return f"{value:.6g}" if isinstance(value, float) else _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value))


_PAGES = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, finalize=_shown, trim_blocks=True)
_PAGES.filters |= {"sha256": _sha256, "json": _json}
_PAGES.globals["zip"] = zip


def exported(form: str, shown: ShownRun, episodes: Sequence[RunEpisode]) -> Iterator[bytes]:
    """Yield an export, piece by piece, none of them empty.

    Args:
        form: One of `FORMATS`.
        shown: The run that they are of.
        episodes: The episodes.
    """
    if form == "html":
        yield from page_of(f"{shown.path.name}: {len(episodes)} episodes", map(shown.read, episodes))
        return
    for episode in episodes:
        if form == "sft":
            for conversation in conversations(turns_of(episode, shown.reader)):
                yield strict_json(conversation) + b"\n"
        else:
            yield strict_json(shown.read(episode)) + b"\n"


def conversations(turns: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the conversations that an episode's turns came to, one for each end, in the form of OpenAI's messages.

    A reply that an earlier one of them has is not learned from again. One whose messages could not be told apart is left out, and so are
    conversations that are not trained on.
    """
    parents = {turn["parent"] for turn in turns}
    learned: set[int] = set()
    for end in turns:
        if end["index"] in parents or end["left_out"]:
            continue
        path, turn = [end], end
        while turn["parent"] is not None:
            turn = turns[turn["parent"]]
            path.insert(0, turn)
        messages: list[dict[str, Any]] = []
        for turn in path:
            for message in turn["messages"]:
                messages.append(_message(message, messages, 0))
            weight = int(turn["trained"] and turn["index"] not in learned)
            messages.append(_message(turn["reply"], messages, weight))
        learned.update(turn["index"] for turn in path)
        if any(message.get("weight") for message in messages) and all(message["role"] != "?" for message in messages):
            pieces = (piece for turn in path for piece in turn["reply"]["tokens"]["text"])
            yield {"messages": messages, "empty_thoughts": "</think>" in "".join(pieces)}


def _message(read: dict[str, Any], before: Sequence[dict[str, Any]], weight: int) -> dict[str, Any]:
    """Return a message as a client sends it. Calls get ids, which no token stands for; a result is that of the first call without one."""
    message: dict[str, Any] = {"role": read["role"], "content": read["text"]}
    if read["role"] == "assistant":
        message["weight"] = weight
        if read["thought"]:
            message["reasoning_content"] = read["thought"]
        if read["tool_calls"]:
            message["tool_calls"] = [
                {
                    "id": f"call{len(before):03d}{index:02d}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
                }
                for index, call in enumerate(read["tool_calls"])
            ]
    elif read["role"] == "tool":
        called = [call["id"] for one in before for call in one.get("tool_calls", ())]
        answered = sum(one["role"] == "tool" for one in before)
        if answered < len(called):
            message["tool_call_id"] = called[answered]
    return message


def page_of(
    title: str, episodes: Iterable[dict[str, Any]], figures: Iterable[tuple[str, object]] = ()
) -> Iterator[bytes]:
    """Return a page of episodes, piece by piece, none of them empty. It needs no other file and no script.

    Args:
        title: Its title.
        episodes: What `ShownRun.read` returns of each.
        figures: Names and values that stand above them.
    """
    pieces = _PAGES.get_template("export.html").stream(title=title, episodes=episodes, figures=figures)
    pieces.enable_buffering(BUFFERED)
    return (piece.encode() for piece in pieces)


def run_html(run: Run) -> str:
    """Return what a notebook shows of a run or an evaluation's directory: its figures, and its newest episodes."""
    shown = ShownRun(run.path)
    episodes = run.episodes(limit=SHOWN_EPISODES, newest_first=True) if (run.path / "store.sqlite").is_file() else []
    return _framed(run.path.name, map(shown.read, episodes), shown.figures().items())


def episode_html(episode: RunEpisode) -> str:
    """Return what a notebook shows of an episode."""
    return _framed(f"episode {episode.id}", [ShownRun(episode.source.path).read(episode)])


def evaluation_html(evaluation: Evaluation) -> str:
    """Return what a notebook shows of an evaluation: its figures, and the first of its episodes."""
    kept = evaluation.episodes[:SHOWN_EPISODES]
    shown = [ShownRun(one.source.path).read(one) for one in kept]
    return _framed("evaluation", shown, evaluation.to_table().items())


def _framed(title: str, episodes: Iterable[dict[str, Any]], figures: Iterable[tuple[str, object]] = ()) -> str:
    """Return the page of an export within a frame, so that a notebook shows it with its own style and policy, and nothing of it can reach the notebook."""
    page = b"".join(page_of(title, episodes, figures)).decode()
    return f'<iframe sandbox="" width="100%" height="600" srcdoc="{escape(page)}"></iframe>'
