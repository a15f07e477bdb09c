"""Google's own client: generateContent, chats, its own loop over functions, and what stands beside them."""

from __future__ import annotations

import functools
import json
from typing import Any

from asking import ANSWER, BOTH, DESCRIPTION, ONE, REPORT, SCHEMA, THINKING, TWO, URL, hold, order, say, weather
from google import genai
from google.genai import types
from pydantic import BaseModel

DECLARED = types.FunctionDeclaration(name="weather", description=DESCRIPTION, parameters_json_schema=SCHEMA)
MODEL = "gemini-3-pro"


class Report(BaseModel):
    place: str
    degrees: int


@functools.cache
def client(key: str) -> genai.Client:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=URL))


def config(**options: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(**options)


def chat(key: str, stream: bool, message: Any, **options: Any) -> str:
    """A chat that runs the function itself."""
    talk = client(key).chats.create(
        model=MODEL, config=config(tools=[weather], system_instruction="Be brief.", **options)
    )
    if stream:
        return "".join(piece.text or "" for piece in talk.send_message_stream(message))
    return str(talk.send_message(message).text)


def by_hand(key: str, stream: bool) -> str:
    """A conversation whose calls the program answers."""
    off = types.AutomaticFunctionCallingConfig(disable=True)
    asked = config(tools=[types.Tool(function_declarations=[DECLARED])], automatic_function_calling=off)
    contents: list[Any] = [types.Content(role="user", parts=[types.Part.from_text(text=BOTH)])]
    for _ in range(4):
        models = client(key).models
        if stream:
            pieces = list(models.generate_content_stream(model=MODEL, contents=contents, config=asked))
            parts = [part for piece in pieces for part in piece.candidates[0].content.parts or []]
        else:
            parts = models.generate_content(model=MODEL, contents=contents, config=asked).candidates[0].content.parts
        calls = [part.function_call for part in parts if part.function_call]
        if not calls:
            return "".join(part.text or "" for part in parts)
        contents.append(types.Content(role="model", parts=parts))
        done = [
            types.Part.from_function_response(name=call.name, response={"result": weather(**call.args)})
            for call in calls
        ]
        contents.append(types.Content(role="user", parts=done))
    return "no answer"


def structured(key: str) -> str:
    asked = config(response_mime_type="application/json", response_schema=Report)
    reply = client(key).models.generate_content(model=MODEL, contents=say(json.dumps(REPORT)), config=asked)
    by_json = config(response_mime_type="application/json", response_json_schema=Report.model_json_schema())
    again = client(key).models.generate_content(model=MODEL, contents=say(json.dumps(REPORT)), config=by_json)
    assert json.loads(str(again.text)) == REPORT
    return order(ANSWER, **(reply.parsed.model_dump() if isinstance(reply.parsed, Report) else {}))


def options(key: str) -> str:
    models = client(key).models
    off = types.SafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="BLOCK_NONE")
    stopped = models.generate_content(
        model=MODEL,
        contents=say(ANSWER + " Or not."),
        config=config(
            stop_sequences=[" Or"], temperature=1, top_p=1, seed=3, max_output_tokens=200, safety_settings=[off]
        ),
    )
    many = models.generate_content(
        model=MODEL, contents=say(ANSWER), config=config(candidate_count=2, labels=None, response_logprobs=True)
    )
    assert len(many.candidates or []) == 2
    return str(stopped.text)


def choices(key: str) -> str:
    tools = [types.Tool(function_declarations=[DECLARED]), types.Tool(google_search=types.GoogleSearch())]
    for mode in ("ANY", "AUTO"):
        choice = types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode=mode))
        called = client(key).models.generate_content(
            model=MODEL, contents=ONE, config=config(tools=tools, tool_config=choice)
        )
        assert [call.args for call in called.function_calls or []] == [{"place": "Berlin"}]
    none = types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="NONE"))
    return str(
        client(key)
        .models.generate_content(model=MODEL, contents=say(ANSWER), config=config(tools=tools, tool_config=none))
        .text
    )


def thinking(key: str) -> str:
    asked = config(thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_level="low"))
    talk = client(key).chats.create(model=MODEL, config=asked)
    first = talk.send_message(THINKING)
    assert [bool(part.thought) for part in first.candidates[0].content.parts] == [True, False]
    return str(talk.send_message(THINKING).text)


def counted(key: str) -> str:
    models = client(key).models
    count = models.count_tokens(model=MODEL, contents=say(ANSWER))
    reply = models.generate_content(model=MODEL, contents=say(ANSWER))
    assert reply.usage_metadata.prompt_token_count == count.total_tokens
    return str(reply.text)


def listed(key: str) -> str:
    models = client(key).models
    (model,) = models.list()
    found = models.get(model=model.name)
    assert found.name == model.name
    return str(models.generate_content(model=model.name, contents=say(ANSWER)).text)


async def asynchronous(key: str) -> str:
    one = client(key).aio
    said = [
        piece.text or "" async for piece in await one.models.generate_content_stream(model=MODEL, contents=say(ANSWER))
    ]
    await one.aclose()
    return "".join(said)


hold(
    chat_whole=lambda key: chat(key, False, ONE),
    chat_stream=lambda key: chat(key, True, ONE),
    chat_two_steps=lambda key: chat(key, False, TWO),
    chat_parallel=lambda key: chat(key, True, BOTH),
    by_hand_whole=lambda key: by_hand(key, False),
    by_hand_stream=lambda key: by_hand(key, True),
    structured=structured,
    options=options,
    choices=choices,
    thinking=thinking,
    counted=counted,
    listed=listed,
    asynchronous=asynchronous,
)
