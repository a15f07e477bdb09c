"""Bad requests by the thousand: `python benchmarks/fuzz_proxy.py --minutes 60`.

The proxy and `agentrl serve`'s paths run in a process of their own, on an engine that answers at once, and measure how long
their event loop stands still. They are asked with valid requests, damaged: their JSON (types, sizes, depths, numbers, Unicode) and their
HTTP (heads, lengths, chunks, encodings, bytes), over raw sockets.

Printed: requests, replies by status, those that failed, and the longest stalls. It exits with 1 for any reply of 5xx, and for
a proxy that does not answer a plain request any more.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from json.decoder import py_scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl.models import NANO
from agentrl.proxy import load_chat_format, open_proxy
from agentrl.proxy.app import Proxy
from agentrl.run.serve import Service
from agentrl.run.session_store import SessionStore
from agentrl.store.store import Store
from agentrl.system.this_process import settled
from tests.instant_engine import InstantEngine

ADMIN_KEY = "admin"
REPLY_TIMEOUT_S = 20.0
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "1 2"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "3"},
]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "1 2"}]},
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "3"},
]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "1 2"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "3"}]},
]
CONTENTS = [
    {"role": "user", "parts": [{"text": "1 2"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "add", "args": {"a": 1}}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {"result": "3"}}}]},
]
DECLARED = {"functionDeclarations": [{"name": "add", "parameters": {"type": "OBJECT", "properties": {"a": {}}}}]}
LEGACY = [
    {"role": "user", "content": "1 2"},
    {"role": "assistant", "content": None, "function_call": CALL["function"]},
    {"role": "function", "name": "add", "content": "3"},
]
BEGUN = {"role": "assistant", "content": "1"}
FUNCTION = {"type": "function", "name": "add", "parameters": {"type": "object"}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {"messages": CHAT, "tools": [TOOL], "n": 2, "logprobs": True, "top_logprobs": 2, "seed": 1},
    ),
    ("/v1/chat/completions", {"messages": CHAT[:2], "stream": True, "stop": ["x"], "temperature": 0.5, "top_p": 0.9}),
    ("/v1/completions", {"prompt": ["1 2", "3"], "n": 2, "logprobs": 1, "max_tokens": 5}),
    ("/v1/completions", {"prompt": [30, 31, 32], "stream": True}),
    ("/v1/responses", {"input": ITEMS, "tools": [FUNCTION], "instructions": "s", "metadata": {"a": "b"}}),
    ("/v1/responses", {"input": "1 2", "stream": True, "text": {"format": {"type": "text"}}}),
    (
        "/v1/messages",
        {"messages": BLOCKS, "max_tokens": 5, "tools": [{"name": "add", "input_schema": {}}], "system": "s"},
    ),
    ("/v1/messages", {"messages": BLOCKS[:1], "max_tokens": 5, "stream": True, "stop_sequences": ["x"]}),
    ("/v1/messages/count_tokens", {"messages": [*BLOCKS[:1], BEGUN]}),
    ("/v1/chat/completions", {"messages": LEGACY, "functions": [TOOL["function"]], "function_call": "auto"}),
    ("/v1/chat/completions", {"messages": [*CHAT[:2], BEGUN], "continue_final_message": True, "stream": True}),
    (
        "/v1beta/models/nano:generateContent",
        {
            "contents": CONTENTS,
            "tools": [DECLARED],
            "systemInstruction": {"parts": [{"text": "s"}]},
            "generationConfig": {"candidateCount": 2, "topK": 2, "stopSequences": ["x"]},
            "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        },
    ),
    ("/v1beta/models/nano:streamGenerateContent?alt=sse", {"contents": CONTENTS[:1]}),
    ("/v1beta/models/nano:streamGenerateContent", {"contents": CONTENTS[:1]}),
    ("/v1beta/models/nano:countTokens", {"contents": CONTENTS[:1]}),
]
ADMIN_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/sessions", {"temperature": 0.5, "max_tokens": 5}),
    ("/sessions/{id}/reward", {"reward": 0.5, "role": "a"}),
    ("/weights", {"path": "nowhere", "version": 1}),
]
RAW = "\0raw:"
"""A string that starts so is written into the JSON as it stands."""


def odd_values(rng: random.Random) -> Any:
    """A value that is of the wrong type, the wrong size, or no JSON at all."""
    size = int(10 ** rng.uniform(0, 5.3))
    return rng.choice(
        [
            lambda: None,
            lambda: rng.choice([True, False]),
            lambda: rng.choice([0, -1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308]),
            lambda: (
                RAW + rng.choice(["NaN", "-Infinity", "1e999", "-0", "01", "9" * 5000, '"\\ud800"', '"\\u0000"', "tru"])
            ),
            lambda: RAW + '{"a":1,"a":2}',
            lambda: "",
            lambda: "a" * size,
            lambda: " " * size,
            lambda: "1 2 3 " * (size // 6),
            lambda: "\u6f22" * (size // 3),
            lambda: "<|im_end|>" * (size // 10),
            lambda: "[" * size,
            lambda: "".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(min(size, 2000))),
            lambda: RAW + "[" * (depth := rng.choice([10, 150, 199, 250, 100_000])) + "]" * depth,
            lambda: RAW + '{"a":' * (depth := rng.choice([10, 150, 199, 250, 100_000])) + "1" + "}" * depth,
            lambda: [rng.randrange(-5, 600)] * size,
            lambda: ["1 2"] * min(size, 50_000),
            lambda: {str(i): i for i in range(min(size, 50_000))},
            lambda: [{}] * min(size, 50_000),
            # Each its own: one that is damaged further is damaged once.
            lambda: [{"role": "user", "content": "1"} for _ in range(min(size, 20_000))],
        ]
    )()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def damaged(body: dict[str, Any], rng: random.Random) -> bytes:
    """A body with one to three of its values replaced, left out, repeated or added."""
    body = copy.deepcopy(body)
    for turn in range(rng.randrange(4)):
        path = rng.choice(places(body))
        if not path:
            body[rng.choice(["n", "seed", "x", "tool_choice", "metadata", "response_format", "logit_bias"])] = (
                odd_values(rng)
            )
            continue
        parent: Any = body
        for key in path[:-1]:
            parent = parent[key]
        match rng.randrange(4):
            case 0 if isinstance(parent, dict):
                del parent[path[-1]]
            case 1 if isinstance(parent, list) and turn == 0:
                parent *= rng.choice([2, 30, 1000])
                break  # an odd value in what is repeated so often would be gigabytes
            case _:
                parent[path[-1]] = odd_values(rng)
    return written(body).encode(errors="surrogatepass")


def written(value: Any) -> str:
    """JSON, with the strings that start with RAW as they stand."""
    text = json.dumps(value, ensure_ascii=False)
    start = json.dumps(RAW)[:-1]
    while (at := text.find(start)) >= 0:
        literal, end = py_scanstring(text, at + 1)
        text = text[:at] + literal.removeprefix(RAW) + text[end:]
    return text


def request(keys: list[str], session_id: str, rng: random.Random) -> bytes:
    """One HTTP request, damaged somewhere."""
    admin = rng.random() < 0.15
    path, body = rng.choice(ADMIN_BODIES if admin else BODIES)
    path = path.replace("{id}", session_id)
    content = damaged(body if admin else {"model": "nano", **body}, rng)
    key = ADMIN_KEY if admin else rng.choice(keys)
    headers = {"Host": "x", "Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    method = "POST"
    if rng.random() < 0.1:
        content = bytes(rng.randrange(256) if rng.random() < 0.02 else byte for byte in content[:5000])
    if rng.random() < 0.3:
        match rng.randrange(12):
            case 0:
                headers["Authorization"] = "Bearer \u00e4\u6f22" + key
            case 1:
                headers["Authorization"] = f"Bearer {key}.{rng.choice(['a', 'a b', 'x' * 500, str(rng.random())])}"
            case 2:
                headers["Content-Length"] = rng.choice(["-1", "x", "1" * 30, "0", str(len(content) + 1)])
            case 3:
                headers["Transfer-Encoding"] = "chunked"
            case 4:
                headers["Content-Encoding"] = rng.choice(["gzip", "br", "deflate", "x"])
            case 5:
                headers["X" * rng.choice([1, 100, 9000])] = "y" * rng.choice([1, 100, 9000])
            case 6:
                headers |= {f"x-{i}": "y" for i in range(rng.choice([10, 300]))}
            case 7:
                method = rng.choice(["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "X", "po st", ""])
            case 8:
                path = rng.choice(
                    ["/", "*", "x", "/%00", "/%0a", "/v1/models/" + "x" * 3000, "/sessions/../x", "/\u00e4"]
                )
            case 9:
                headers["Content-Type"] = rng.choice(["text/plain", "multipart/form-data", "\u00e4", ""])
            case 10:
                headers["Expect"] = rng.choice(["100-continue", "x"])
            case 11:
                del headers[rng.choice(["Host", "Authorization"])]
    headers.setdefault("Content-Length", str(len(content)))
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    whole = f"{head}Connection: close\r\n\r\n".encode() + content
    if rng.random() < 0.05:
        cut = rng.randrange(len(whole))
        whole = (
            whole[:cut] + bytes(rng.randrange(256) for _ in range(rng.randrange(8))) + whole[cut + rng.randrange(8) :]
        )
    return whole[: rng.randrange(len(whole))] if rng.random() < 0.03 else whole


async def ask(address: tuple[str, int], raw: bytes) -> str:
    """Send bytes on a connection of their own; the status, or what came in its place."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            writer.write(raw)
            await writer.drain()
            if writer.can_write_eof() and b"Content-Length" not in raw[:2000]:
                writer.write_eof()
            while b" 100 " in (line := await reader.readline()):
                while (await reader.readline()).strip():
                    pass
            rest = await reader.read()
    except TimeoutError:
        return "no reply"
    except OSError:
        return "closed"
    finally:
        writer.close()
    if b'"internal_error"' in rest or (b"event: error" in rest and b"api_error" in rest):
        return "500 in a stream" if b" 200 " in line else "500"
    return line.split()[1].decode() if line.startswith(b"HTTP/") else "closed"


async def fuzz_bytes(url: str, seconds: float, seed: int, at_once: int) -> tuple[Counter[str], list[bytes]]:
    """Ask for so long; replies by status, and the requests that failed."""
    host, port = url.removeprefix("http://").split(":")
    address = (host, int(port))
    statuses: Counter[str] = Counter()
    failed: list[bytes] = []
    until = time.monotonic() + seconds

    async def opened() -> dict[str, Any]:
        head = f"POST /sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_KEY}\r\nContent-Length: 0\r\n"
        reader, writer = await asyncio.open_connection(*address)
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        reply = await reader.read()
        writer.close()
        return json.loads(reply.partition(b"\r\n\r\n")[2])  # type: ignore[no-any-return]

    async def one(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        session = await opened()
        while time.monotonic() < until:
            raw = await asyncio.to_thread(request, [session["api_key"], "wrong"], session["id"], rng)
            status = await ask(address, raw)
            statuses[status] += 1
            if status.startswith("5"):
                failed.append(raw)

    async with asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(one(number))
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(REPLY_TIMEOUT_S):
        if b" 200 " not in await reader.readline():
            raise RuntimeError("the proxy does not answer any more")
    writer.close()
    return statuses, failed


async def serve() -> None:
    """Serve until standard input closes; then print the longest stalls of the event loop, in milliseconds."""
    stalls_s: list[float] = []
    pauses_s: list[float] = []

    async def watch() -> None:
        while True:
            before, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.005)
            # What the loop's own thread computed, or waited for Python's lock; and without what other programs took.
            stalls_s.append(time.perf_counter() - before - 0.005)
            pauses_s.append(time.thread_time() - used)

    chat_format = load_chat_format(NANO)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store.sqlite") as store:

        def service(proxy: Proxy) -> Any:
            return Service(proxy, engine, SessionStore(store), ADMIN_KEY).handle

        engine = InstantEngine()
        async with open_proxy(engine, chat_format, "nano", middleware=service) as proxy:
            with settled():
                print(proxy.url, flush=True)
                watching = asyncio.create_task(watch())
                await asyncio.to_thread(sys.stdin.read)
                watching.cancel()
    print(json.dumps([sorted(1000 * s for s in times)[-20:] for times in (stalls_s, pauses_s)]), flush=True)


def main() -> int:
    """Start the server, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=4, help="requests at the same time")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where requests that failed are written")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve())
        return 0
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        statuses, failed = asyncio.run(fuzz_bytes(url, 60 * args.minutes, args.seed, args.at_once))
        print(f"{sum(statuses.values())} requests: {dict(sorted(statuses.items()))}", flush=True)
        server.stdin.close()
        stalls, computed = json.loads(server.stdout.read())
    print("longest stalls of the event loop, ms:", ", ".join(f"{s:.0f}" for s in stalls[::-1][:8]))
    print("of which its own thread computed, ms:", ", ".join(f"{s:.0f}" for s in computed[::-1][:8]))
    for number, raw in enumerate(failed):
        print(raw[:300])
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"{number}.http").write_bytes(raw)
    return 1 if failed else 0


if __name__ == "__main__":
    socket.setdefaulttimeout(REPLY_TIMEOUT_S)
    sys.exit(main())
