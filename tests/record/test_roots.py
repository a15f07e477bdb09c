"""What each conversation of an episode is: over made-up sessions, and over the shapes that real agents have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import EpisodeError
from agentrl.proxy.turn_texts import UNKNOWN, TurnTexts, replied_texts, system_prompt
from agentrl.record.roots import Root, TurnText, rerendered_tokens, roots_of
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn
from agentrl.rollout.trained_roots import choose_roots

SUMMARY = "The file has two bugs, one of which is mended."
FOUND = "The bug is in parser.py, line 12."


def ids_of(text: str) -> list[int]:
    return [ord(char) for char in text]


@dataclass
class MadeUp:
    """A session whose tokens are the characters of its messages."""

    record: TokenRecord = field(default_factory=TokenRecord)
    turn_texts: list[TurnText] = field(default_factory=list)
    texts: TurnTexts = field(default_factory=TurnTexts)
    conversations: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """By the last turn of each: its messages."""

    def ask(
        self,
        *messages: dict[str, Any],
        after: Turn | None = None,
        reply: str = "",
        calls: list[dict[str, Any]] | None = None,
        tools: str = "",
        model: str = "big",
        role: str = "",
        reward: float | None = None,
    ) -> Turn:
        """Record a call with new messages after those of a turn."""
        known = self.conversations[id(after)] if after else []
        offered = [{"function": {"name": name}} for name in tools.split()]
        head = "" if after else f"{tools}|"
        prompt = head + "".join(f"{message['role']}:{message.get('content')};" for message in messages)
        answer = {"role": "assistant", "content": reply, "tool_calls": calls or []}
        sampled = ids_of(reply + str(calls or ""))
        turn = self.record.add(
            f"call-{len(self.record.turns)}",
            after,
            (after.token_ids() if after else []) + ids_of(prompt),
            Generation(
                output_ids=sampled,
                logprobs=[-0.5] * len(sampled),
                versions=[VersionSpan(0, 0, len(sampled))] if sampled else [],
                finish="stop",
            ),
            1.0,
        )
        turn.model, turn.role, turn.reward = model, role, reward
        text = self.texts.of([*known, *messages], len(known), offered, None)
        self.turn_texts.append(TurnText(**{**vars(text), "replied": replied_texts(answer)}))
        self.conversations[id(turn)] = [*known, *messages, answer]
        return turn

    def roots(self) -> list[Root]:
        return roots_of(self.record.turns, self.turn_texts)

    def kinds(self) -> list[str]:
        return [root.kind for root in self.roots()]

    def apply(self, trajectories: object) -> None:
        choose_roots(self.record, self.turn_texts, trajectories).apply(self.record, {})


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def tool_call(name: str, arguments: str) -> list[dict[str, Any]]:
    return [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}]


def begin(session: MadeUp, question: str = "Mend it.", **options: Any) -> Turn:
    return session.ask(
        system("You are an agent."), user(question), tools="bash agent", calls=tool_call("bash", "{}"), **options
    )


def test_one_conversation_is_the_main_one() -> None:
    session = MadeUp()
    turn = begin(session)
    session.ask(result("ok"), after=turn, reply="Done.")
    assert session.kinds() == ["main"]
    assert session.roots()[0].turns == tuple(session.record.turns)
    assert (session.roots()[0].system, session.roots()[0].tools) == ("You are an agent.", ("bash", "agent"))
    assert session.roots()[0].reply == "Done."


@pytest.mark.parametrize("model", ["big", "small"])
def test_a_title_is_a_side_call_whether_it_comes_first_or_later(model: str) -> None:
    for first in (True, False):
        session = MadeUp()
        if first:
            session.ask(system("Write a title."), user("Mend it."), reply="Mending the parser", model=model)
        turn = begin(session)
        if not first:
            session.ask(system("Write a title."), user("Mend it."), reply="Mending the parser", model=model)
        session.ask(result("ok"), after=turn, reply="Done.")
        assert sorted(session.kinds()) == ["main", "side_call"]
        assert [root.kind for root in session.roots() if root.tools] == ["main"]


def test_a_summary_by_a_smaller_model_is_a_side_call_also_where_something_came_of_it() -> None:
    session = MadeUp()
    turn = begin(session)
    session.ask(user("Summarise the page."), reply="The page says that it rains.", model="small")
    session.ask(result("The page says that it rains."), after=turn, reply="It rains.")
    assert session.kinds() == ["main", "side_call"]


def test_a_sub_agent_has_a_role_by_the_first_words_of_its_prompt_and_its_tools() -> None:
    names = []
    for folder in ("/tmp/a", "/tmp/b"):
        session = MadeUp()
        main = begin(session)
        prompt = f"You are a search agent. You only read files, and never write any. Folder: {folder}"
        sub = session.ask(system(prompt), user("Find the bug."), tools="grep", calls=tool_call("grep", "{}"))
        sub = session.ask(result("12: oops"), after=sub, calls=tool_call("grep", "{}"))
        session.ask(result("nothing"), after=sub, reply=FOUND)
        # As a part of a tool's result, and as JSON writes it.
        session.ask(result('{"report": "' + FOUND + '\\nThat is all."}'), after=main, reply="Done.")
        assert session.kinds() == ["main", "sub_agent"], "the main conversation has fewer turns"
        names.append(session.roots()[1].name)
        session.apply("main")
        assert [turn.role for turn in session.record.turns] == ["", names[0], names[0], names[0], ""]
        assert not any(turn.left_out for turn in session.record.turns)
    assert names[0] == names[1]
    assert names[0].startswith("sub-agent-")


def test_a_sub_agent_earns_what_its_role_earns_or_what_the_workflow_gives_it() -> None:
    name = ""
    for own in ({"solver": 0.25}, {"solver": 0.25, "sub": 0.5}):
        session = MadeUp()
        main = begin(session, role="solver")
        session.ask(system("You search."), user("Find it."), tools="grep", reply=FOUND, role="solver")
        session.ask(result(FOUND), after=main, reply="Done.", role="solver")
        rewards = {name if role == "sub" else role: value for role, value in own.items()}
        session.record.reward_roles(rewards)
        choose_roots(session.record, session.turn_texts, "main").apply(session.record, rewards)
        sub, name = session.record.turns[1], session.record.turns[1].role
        assert name.startswith("solver-sub-agent-")
        assert [turn.role_reward for turn in session.record.turns] == [0.25, own.get("sub", 0.25), 0.25]
        assert sub.root_kind == "sub_agent"


@pytest.mark.parametrize("own_prompt", [False, True], ids=["within the conversation", "by a prompt of its own"])
def test_a_compacted_conversation_goes_on(own_prompt: bool) -> None:
    session = MadeUp()
    turn = begin(session)
    turn = session.ask(result("ok"), after=turn, reply="I look at it.")
    if own_prompt:
        session.ask(system("You summarise."), user("... all of it ..."), reply=SUMMARY)
    else:
        session.ask(user("Summarise this."), after=turn, reply=SUMMARY)
    more = begin(session, f"This goes on from: {SUMMARY}")
    session.ask(result("ok"), after=more, reply="Done.")
    expected = ["main", "sub_agent", "compacted"] if own_prompt else ["main", "compacted"]
    assert session.kinds() == expected
    session.apply("main")
    assert not any(turn.left_out for turn in session.record.turns)


def test_a_history_that_is_rewritten_is_one_conversation_begun_anew() -> None:
    session = MadeUp()
    history = [system("You are an agent."), user("Mend the parser, please, and tell me when you are done with it.")]
    for number in range(6):
        reply = f"Step {number}: I look at the next file of the parser."
        session.ask(*history, reply=reply)
        # Not as an assistant's message, as smolagents and DSPy do.
        history.append(user(f"Before, you said: {reply}\nObservation: {number} bugs are left in the parser."))
    assert session.kinds() == ["main"] + ["compacted"] * 5
    session.apply("main")
    assert not any(turn.left_out for turn in session.record.turns)
    asked = sum(len(turn.prompt_ids) for turn in session.record.turns)
    assert rerendered_tokens(session.record.turns) > 0.4 * asked


def test_choices_and_repeated_questions_are_one_root() -> None:
    session = MadeUp()
    turns = [session.ask(system("You are an agent."), user("Try."), reply=f"Try {n}") for n in range(3)]
    session.ask(user("Go on with this one."), after=turns[1], reply="Done.")
    assert session.kinds() == ["main"]
    assert len(session.roots()[0].turns) == 4


def test_several_single_questions_are_all_the_agents_own() -> None:
    session = MadeUp()
    for n in range(3):
        session.ask(user(f"Question {n}?"), reply=f"Answer {n}.")
    assert session.kinds() == ["main"] * 3


def test_what_was_rewarded_is_no_side_call_and_each_role_has_a_main_conversation() -> None:
    session = MadeUp()
    turn = begin(session)
    session.ask(result("ok"), after=turn, reply="Done.")
    session.ask(user("How sure are you?"), reply="Quite.", reward=1.0, model="small")
    session.ask(user("Was that right?"), reply="Yes.", role="critic")
    assert session.kinds() == ["main"] * 3


def test_tools_that_change_make_no_sub_agent() -> None:
    session = MadeUp()
    first = session.ask(system("You are an agent."), user("Mend it."), tools="bash", reply="I look at the parser.")
    messages = session.conversations[id(first)]
    session.ask(*messages, user("Go on."), tools="bash edit", reply="Done.")
    assert session.kinds() == ["main", "compacted"]


def test_of_what_nothing_is_known_nothing_is_left_out() -> None:
    session = MadeUp()
    turn = begin(session)
    session.ask(result("ok"), after=turn, reply="Done.")
    session.ask(user("A title?"), reply="Mending")
    assert session.kinds() == ["main", "side_call"]
    session.turn_texts[0] = UNKNOWN
    assert session.kinds() == ["main", "main"]


def test_a_function_chooses() -> None:
    session = MadeUp()
    turn = begin(session)
    session.ask(user("A title?"), reply="Mending", model="small")
    session.ask(result("ok"), after=turn, reply="Done.")
    session.apply(lambda root: "titles" if root.model == "small" else root.kind != "main")
    assert [(turn.role, turn.left_out) for turn in session.record.turns] == [("", True), ("titles", False), ("", True)]
    for wrong in (lambda root: 1, lambda root: "two words", lambda root: None):
        with pytest.raises(EpisodeError, match="return True, False, or a role"):
            session.apply(wrong)
    with pytest.raises(EpisodeError, match='set it to "main", "all" or a function'):
        session.apply("side")


def test_a_label_is_no_part_of_a_system_prompt() -> None:
    label = "x-anthropic-billing-header: cc_version=2.1.197.644; cc_entrypoint=sdk-cli;"
    messages = [system(f"{label}You are an agent."), system("More."), user("Hello"), system("Later.")]
    assert system_prompt(messages) == "You are an agent.\nMore."


WORDS = st.sampled_from(["", "yes", "a summary of what was done", "the bug is in line 12", "look at the next file"])
CALL = st.fixed_dictionaries(
    {
        "after": st.integers(0, 6),
        "system": st.sampled_from(["", "You are an agent.", "You search."]),
        "asked": st.lists(WORDS, min_size=1, max_size=2),
        "reply": WORDS,
        "tools": st.sampled_from(["", "", "bash", "grep"]),
        "model": st.sampled_from(["big", "big", "small"]),
        "role": st.sampled_from(["", "", "critic"]),
        "reward": st.none() | st.just(1.0),
    }
)


def made_up(calls: list[dict[str, Any]]) -> MadeUp:
    session = MadeUp()
    for values in calls:
        call = dict(values)
        turns = session.record.turns
        after = ([None, *turns])[call.pop("after") % (len(turns) + 1)]
        messages = [user(text) for text in call.pop("asked")]
        prompt = call.pop("system")
        session.ask(*([system(prompt)] if prompt and after is None else []), *messages, after=after, **call)
    return session


def trained(record: TokenRecord) -> set[tuple[int, int]]:
    """(turn, position) of every token that is trained on."""
    found = set()
    for path in record.trajectories():
        for index, (turn, mask) in enumerate(zip(path.turn_index, path.loss_mask, strict=True)):
            if mask:
                found.add((turn, index))
    return found


@given(st.lists(CALL, min_size=1, max_size=7))
def test_every_turn_is_in_one_root_and_only_what_is_left_out_is_not_trained_on(calls: list[dict[str, Any]]) -> None:
    before, everything, main = made_up(calls), made_up(calls), made_up(calls)
    roots = before.roots()
    assert sorted(id(turn) for root in roots for turn in root.turns) == sorted(map(id, before.record.turns))
    for root in roots:
        for turn in root.turns:
            assert turn.parent is None or turn.parent in root.turns
    assert [root.kind for root in roots] == made_up(calls).kinds(), "it depends on what was said alone"
    assert all(root.name.startswith(root.role) and "sub-agent-" in root.name for root in roots if root.name)
    for role in {root.role for root in roots}:  # an agent is never left out as a whole
        assert any(root.kind != "side_call" for root in roots if root.role == role)

    everything.apply("all")
    main.apply("main")
    whole = trained(before.record)
    assert trained(everything.record) == whole
    assert [turn.role for turn in everything.record.turns] == [turn.role for turn in before.record.turns]
    side = {
        index
        for index, turn in enumerate(before.record.turns)
        if any(root.kind == "side_call" and turn in root.turns for root in roots)
    }
    assert trained(main.record) == {token for token in whole if token[0] not in side}
    for session in (everything, main):  # nothing that was recorded is lost
        assert len(session.record.turns) == len(calls)
        assert [turn.root_kind for turn in session.record.turns] == [turn.root_kind for turn in main.record.turns]
        ids = [turn.token_ids() for turn in session.record.turns]
        assert ids == [turn.token_ids() for turn in before.record.turns]


@given(st.lists(CALL, min_size=1, max_size=7))
def test_no_more_is_rendered_again_than_was_rendered(calls: list[dict[str, Any]]) -> None:
    session = made_up(calls)
    rendered = sum(len(turn.prompt_ids) for turn in session.record.turns if turn.parent is None)
    again = rerendered_tokens(session.record.turns)
    assert 0 <= again <= rendered
    if sum(turn.parent is None for turn in session.record.turns) == 1:
        assert again == 0
