"""Instructor, which asks for structured output by tools or by schemas, and asks again where it is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anthropic
import instructor
import openai
from asking import ANSWER, REPORT, URL, hold, order, say
from pydantic import BaseModel, Field


class Report(BaseModel):
    place: str
    degrees: int = Field(lt=100)


WRONG = {"place": "Berlin", "degrees": 2000}


def ask(key: str, mode: instructor.Mode, *steps: Any, **options: Any) -> str:
    sdk = openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)
    asked: Any = [{"role": "user", "content": say(*steps)}]
    made: Any = instructor.from_openai(sdk, mode=mode)
    report = made.create(model="gpt-5.4", messages=asked, response_model=Report, max_retries=2, **options)
    return order(ANSWER, **report.model_dump())


def growing(made: Any, **options: Any) -> str:
    """A report in pieces, as the arguments of a call grow. Instructor names the tool itself."""
    asked = [{"role": "user", "content": say([("PartialReport", REPORT)])}]
    pieces = list(made.create_partial(messages=asked, response_model=Report, **options))
    begun = [piece for piece in pieces if piece.degrees is None]
    return order(ANSWER, **pieces[-1].model_dump()) if begun else f"{pieces} came at once"


def partial(key: str, mode: instructor.Mode) -> str:
    sdk = openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)
    return growing(instructor.from_openai(sdk, mode=mode), model="gpt-5.4")


def partial_by_anthropic(key: str) -> str:
    sdk = anthropic.Anthropic(base_url=URL, api_key=key, max_retries=0)
    made = instructor.from_anthropic(sdk, mode=MODE.ANTHROPIC_TOOLS)
    return growing(made, model="claude-opus-4-5", max_tokens=500)


def several(key: str) -> str:
    sdk = openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)
    asked: Any = [{"role": "user", "content": say([("IterableReport", {"tasks": [REPORT, REPORT]})])}]
    made: Any = instructor.from_openai(sdk)
    found: Iterable[Report] = made.create_iterable(model="gpt-5.4", messages=asked, response_model=Report)
    reports = list(found)
    return order(ANSWER, **reports[1].model_dump())


def by_anthropic(key: str, mode: instructor.Mode, *steps: Any) -> str:
    sdk = anthropic.Anthropic(base_url=URL, api_key=key, max_retries=0)
    asked: Any = [{"role": "user", "content": say(*steps)}]
    made: Any = instructor.from_anthropic(sdk, mode=mode)
    report = made.create(
        model="claude-opus-4-5",
        max_tokens=500,
        messages=asked,
        response_model=Report,
        max_retries=2,
        system="Be brief.",
    )
    return order(ANSWER, **report.model_dump())


MODE = instructor.Mode
CALL, AMISS = [("Report", REPORT)], [("Report", WRONG)]
hold(
    chat_tools=lambda key: ask(key, MODE.TOOLS, CALL),
    chat_tools_again=lambda key: ask(key, MODE.TOOLS, AMISS, CALL),
    chat_tools_strict=lambda key: ask(key, MODE.TOOLS_STRICT, CALL),
    chat_json=lambda key: ask(key, MODE.JSON, json.dumps(REPORT)),
    chat_json_again=lambda key: ask(key, MODE.JSON, json.dumps(WRONG), json.dumps(REPORT)),
    chat_json_schema=lambda key: ask(key, MODE.JSON_SCHEMA, json.dumps(REPORT)),
    chat_md_json=lambda key: ask(key, MODE.MD_JSON, f"```json\n{json.dumps(REPORT)}\n```"),
    chat_several=several,
    chat_partial=lambda key: partial(key, MODE.TOOLS),
    responses_partial=lambda key: partial(key, MODE.RESPONSES_TOOLS),
    anthropic_partial=partial_by_anthropic,
    responses_tools=lambda key: ask(key, MODE.RESPONSES_TOOLS, CALL),
    anthropic_tools=lambda key: by_anthropic(key, MODE.ANTHROPIC_TOOLS, CALL),
    anthropic_tools_again=lambda key: by_anthropic(key, MODE.ANTHROPIC_TOOLS, AMISS, CALL),
    anthropic_json=lambda key: by_anthropic(key, MODE.ANTHROPIC_JSON, json.dumps(REPORT)),
)
