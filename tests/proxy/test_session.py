"""Which recorded call a request continues."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any, ClassVar, cast

import pytest

from agentrl.proxy import ChatFormat, Session
from agentrl.proxy.chat_format import Rendered
from agentrl.proxy.session import Prompt
from agentrl.record.tokens import Generation, ImageSpan, VersionSpan

USER: list[Any] = [{"role": "user", "content": "1 + 1 ="}]
SAID: Any = {"role": "assistant", "content": "2"}


def generation(choice: int) -> Generation:
    """Of other ids for every choice; that they are not read as "2" matters to no session."""
    ids = [20 + choice, 3]
    return Generation(output_ids=ids, logprobs=[-0.5, -0.5], versions=[VersionSpan(0, 0, 2)], finish="stop")


def add(session: Session, call_id: str, asked: Prompt, choice: int = 0) -> Any:
    turn = session.record.add(call_id, asked.parent, asked.input_ids, generation(choice), 1.0, asked.images)
    turn.choice_index = choice
    session.remember(asked, SAID, turn)
    return turn


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("ended", list(permutations(range(3))))
def test_of_choices_that_say_the_same_the_first_of_the_newest_call_is_continued_whichever_ended_last(
    nano_format: ChatFormat, ended: tuple[int, ...], raw: bool
) -> None:
    def prompt(text: str, messages: list[Any]) -> Prompt:
        return session.raw_prompt(nano_format, text) if raw else session.prompt(nano_format, messages, None)

    session = Session()
    for call_id in ("first", "second"):
        asked = prompt("1 + 1 =", USER)
        for choice in ended:
            add(session, call_id, asked, choice)
    parent = prompt("1 + 1 =2 + 1 =", [*USER, SAID, {"role": "user", "content": "and + 1?"}]).parent
    assert parent is not None
    assert (parent.completion_id, parent.choice_index) == ("second", 0)


class Altering:
    """A renderer that alters one id where it goes on from a turn."""

    def __init__(self, renderer: Any, at: int) -> None:
        self._renderer = renderer
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)

    def bridge_to_next_turn(self, *args: Any, **options: Any) -> Any:
        bridged = self._renderer.bridge_to_next_turn(*args, **options)
        ids = list(bridged.token_ids)
        ids[self._at] += 1
        return replace(bridged, token_ids=ids)


def test_a_conversation_whose_recorded_ids_would_come_back_altered_begins_anew(nano_format: ChatFormat) -> None:
    asked = len(Session().prompt(nano_format, USER, None).input_ids)
    messages = [*USER, SAID, {"role": "user", "content": "and + 1?"}]
    said = len(generation(0).output_ids)
    for at in range(asked + said + 1):
        altering = ChatFormat(nano_format.tokenizer, Altering(nano_format.renderer, at), nano_format.context_length)
        session = Session()
        turn = add(session, "call", session.prompt(altering, USER, None))
        path = turn.token_ids()
        extended = altering.extend(path[:asked], path[asked:], messages[-1:], None)
        if at < asked + said:
            assert extended is None
            assert session.prompt(altering, messages, None).parent is None
        else:
            assert extended is not None
            assert extended.ids[: asked + said] == path
            assert session.prompt(altering, messages, None).parent is turn


class Seeing:
    """A chat template whose prompts have the same ids, whatever image is asked about."""

    template_options: ClassVar[dict[str, Any]] = {}
    is_template = True

    def render(self, messages: list[Any], tools: Any) -> Rendered:
        ids = [1, 1, 5] if len(messages) == 1 else [1, 1, 5, *generation(0).output_ids, 5]
        return Rendered(ids, (ImageSpan(messages[0]["content"], 0, 2),))


def test_a_conversation_about_another_image_goes_on_from_no_turn_though_its_ids_are_the_same() -> None:
    session, seeing = Session(), cast(ChatFormat, Seeing())
    red, blue = ({"role": "user", "content": colour} for colour in ("red", "blue"))
    add(session, "call", session.prompt(seeing, [red], None))
    assert session.prompt(seeing, [blue, SAID, blue], None).parent is None
