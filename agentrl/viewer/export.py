"""Exports of a run: JSON lines, one HTML page that needs nothing else, and conversations to learn from.

jsonl   an episode a line, with its turns, as the API gives them, without the ids of prompts
html    a page without a script, which shows what a model wrote as text and loads nothing
sft     a conversation a line, as `agentrl sft` reads it: every conversation of the agent's own, up to each of its ends
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from agentrl.store.read_episode import RunEpisode
from agentrl.viewer.transcript import strict_json, turns_of

if TYPE_CHECKING:
    from agentrl.viewer.queries import Shown

FORMATS = {
    "jsonl": (".jsonl", "application/jsonl; charset=utf-8"),
    "html": (".html", "text/html; charset=utf-8"),
    "sft": (".sft.jsonl", "application/jsonl; charset=utf-8"),
}
"""The end of a file's name, and its type."""
COLOURED_TOKENS = 5000
"""Tokens of one reply that a page shows each by itself."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Characters that no page holds, that a terminal obeys, or that turn the order of what follows."""
_STYLE = """
:root{color-scheme:light dark;--line:#8884;--faint:#8882;font:15px/1.5 system-ui,sans-serif}
body{max-width:60rem;margin:2rem auto;padding:0 1rem}h1{font-size:1.3rem}h2{font-size:1.05rem;margin:2.5rem 0 .5rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top}
section{border-left:3px solid var(--line);padding:.1rem 0 .1rem .8rem;margin:.6rem 0}section.assistant{border-color:#3b82f6}
section.tool{border-color:#10b981}section.error{border-color:#ef4444}header{font-size:.8rem;opacity:.75}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2rem 0;font:13px/1.5 ui-monospace,monospace}details>summary{cursor:pointer;font-size:.8rem;opacity:.75}
.t1{background:#f59e0b22}.t2{background:#f59e0b44}.t3{background:#f59e0b77}.t4{background:#ef444499}.cut{border-left:3px solid #8b5cf6}
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()


def exported(form: str, shown: Shown, episodes: Sequence[RunEpisode]) -> Iterator[bytes]:
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
            read = shown.read(episode)
            turns = [{name: value for name, value in turn.items() if name != "prompt"} for turn in read["turns"]]
            yield strict_json({**read, "turns": turns}) + b"\n"


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
            yield {"messages": messages}


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
    """Yield a page of episodes, piece by piece, which needs no other file and no script.

    Args:
        title: Its title.
        episodes: What `Shown.read` returns of each.
        figures: Names and values that stand above them.
    """
    policy = f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:"
    yield _bytes(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><title>{_text(title)}</title><style>{_STYLE}</style></head><body>'
        f"<h1>{_text(title)}</h1>{_table(figures)}"
    )
    for episode in episodes:
        yield _bytes("".join(_episode(episode)))
    yield b"</body></html>\n"


def _episode(read: dict[str, Any]) -> Iterator[str]:
    episode = read["episode"]
    yield f"<h2>Episode {episode['id']}: {_text(episode['reason'])}, reward {_text(_number(episode['reward']))}</h2>"
    facts = ("task", "group", "step", "tokens", "duration_s", "staleness")
    named = [(name, _number(episode[name])) for name in facts if episode[name] is not None]
    yield _table([*named, *((name, _number(value)) for name, value in episode["metrics"].items())])
    for turn in read["turns"]:
        for message in turn["messages"]:
            yield _message_html(message, message["role"])
        facts_of = [f"turn {turn['index']}", turn["role"], "" if turn["kind"] == "main" else turn["kind"]]
        facts_of += [] if turn["advantage"] is None else [f"advantage {turn['advantage']:.3g}"]
        facts_of += ["cut off for its length"] if turn["truncated"] else []
        yield _message_html(turn["reply"], ", ".join(filter(None, facts_of)))
    if read["details"]:
        yield f"<section><header>details</header><pre>{_text(_json(read['details']))}</pre></section>"
    if episode["error"]:
        yield f'<section class="error"><header>error</header><pre>{_text(episode["error"])}</pre></section>'


def _message_html(message: dict[str, Any], heading: str) -> str:
    role = message["role"] if message["role"] in ("assistant", "tool", "user", "system") else "unknown"
    thought = (
        message["thought"] and f"<details><summary>thought</summary><pre>{_text(message['thought'])}</pre></details>"
    )
    calls = "".join(
        f"<pre>{_text(call['name'])}({_text(_json(call['arguments']))})</pre>" for call in message["tool_calls"]
    )
    text = f"<pre>{_text(message['text'])}</pre>" if message["text"] else ""
    tokens = _tokens(message["tokens"]) if "tokens" in message else ""
    return f'<section class="{role}"><header>{_text(heading)}</header>{thought or ""}{text}{calls}{tokens}</section>'


def _tokens(tokens: dict[str, Any]) -> str:
    """Return a reply's tokens, the less probable the stronger in colour, with a line where an update of the weights cut it."""
    columns = zip(tokens["ids"], tokens["text"], tokens["logprobs"], tokens["versions"], strict=True)
    spans: list[str] = []
    before = None
    for token, text, logprob, version in list(columns)[:COLOURED_TOKENS]:
        shade = sum(logprob < limit for limit in (-0.1, -0.7, -2.3, -4.6))
        cut = " cut" if before not in (None, version) else ""
        spans.append(
            f'<span class="t{shade}{cut}" title="{token}: log p {_text(_number(logprob))}, version {version}">{_text(text)}</span>'
        )
        before = version
    more = len(tokens["ids"]) - len(spans)
    rest = f"<p>{more:,} tokens more</p>" if more > 0 else ""
    return f"<details><summary>{len(tokens['ids']):,} tokens</summary><pre>{''.join(spans)}</pre>{rest}</details>"


def _table(rows: Iterable[tuple[str, object]]) -> str:
    return (
        "<table>"
        + "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
        + "</table>"
    )


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


def _text(value: object) -> str:
    return escape(_CONTROL.sub("�", str(value)))


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")
