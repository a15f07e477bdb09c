"""Which conversations an episode has, and which are the main agent's: over made-up sessions, and the shapes of real agents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import EpisodeError
from agentrl.record.conversations import Conversation, conversations_of, rerendered_tokens, system_prompt
from agentrl.record.tokens import Generation, VersionSpan
from agentrl.record.trajectory import TokenRecord, Turn, TurnText
from agentrl.rollout.trained_conversations import choose_conversations


def ids_of(text: str) -> list[int]:
    return [ord(char) for char in text]


@dataclass
class MadeUp:
    """A session whose tokens are the characters of its messages."""

    record: TokenRecord = field(default_factory=TokenRecord)
    history: dict[Turn, list[dict[str, Any]]] = field(default_factory=dict)
    """The messages up to each turn's reply."""

    def ask(
        self,
        *messages: dict[str, Any],
        after: Turn | None = None,
        reply: str = "",
        tools: str = "",
        model: str = "big",
        role: str = "",
        reward: float | None = None,
    ) -> Turn:
        """Record a call with new messages after those of a turn."""
        head = "" if after else f"{tools}|"
        prompt = head + "".join(f"{message['role']}:{message['content']};" for message in messages)
        sampled = ids_of(reply)
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
        turn.text = TurnText("" if after else system_prompt(messages), tuple(tools.split()), reply)
        before = self.history[after] if after else []
        self.history[turn] = [*before, *messages, {"role": "assistant", "content": reply}]
        return turn

    def conversations(self) -> list[Conversation]:
        return conversations_of(self.record.turns)

    def choose(self, trajectories: object = "main", rewards: dict[str, float] | None = None) -> list[bool]:
        """Choose what is trained on, and return the choice for each conversation."""
        choose_conversations(self.record, trajectories).apply(rewards or {})
        return [not one.turns[0].left_out for one in self.conversations()]


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def begin(session: MadeUp, question: str = "Mend it.", **options: Any) -> Turn:
    return session.ask(system("You are an agent."), user(question), **{"tools": "bash agent", **options})


def test_one_conversation_is_trained_on_and_known_by_its_first_call_and_last_reply() -> None:
    session = MadeUp()
    turn = begin(session)
    session.ask(result("ok"), after=turn, reply="Done.", model="other")
    (one,) = session.conversations()
    assert one.turns == tuple(session.record.turns)
    assert (one.system, one.tools, one.model) == ("You are an agent.", ("bash", "agent"), "big")
    assert one.reply == "Done."
    assert session.choose() == [True]


@pytest.mark.parametrize("tools", ["bash", ""], ids=["of an agent with tools", "of an agent without"])
@pytest.mark.parametrize("first", [True, False])
def test_a_title_is_left_out_whether_it_comes_first_or_later(first: bool, tools: str) -> None:
    session = MadeUp()
    if first:
        session.ask(system("Write a title."), user("Mend it."), reply="Mending the parser")
    turn = begin(session, tools=tools)
    if not first:
        session.ask(system("Write a title."), user("Mend it."), reply="Mending the parser")
    session.ask(result("ok"), after=turn, reply="Done.", tools=tools)
    assert session.choose() == ([False, True] if first else [True, False])


def test_a_question_of_the_agent_without_its_tools_or_to_another_model_is_left_out() -> None:
    session = MadeUp()
    begin(session)
    session.ask(system("You are an agent."), user("Is there a new topic?"), reply="Yes.")
    begin(session, "Is there a new topic?", model="small")
    assert session.choose() == [True, False, False]


def test_a_sub_agent_is_left_out_though_it_has_more_turns_than_the_main_agent() -> None:
    session = MadeUp()
    main = begin(session)
    sub = session.ask(system("You search."), user("Find the bug."), tools="grep")
    for _ in range(3):
        sub = session.ask(result("nothing"), after=sub, tools="grep", reply="I look on.")
    session.ask(result("It is in line 12."), after=main, reply="Done.")
    assert session.choose() == [True, False]


def test_a_compacted_conversation_goes_on_with_the_same_prompt_and_is_trained_on() -> None:
    session = MadeUp()
    turn = begin(session)
    session.ask(user("Summarise this."), after=turn, reply="Half is done.")
    more = begin(session, "This goes on from: Half is done.")
    session.ask(result("ok"), after=more, reply="Done.")
    assert session.choose() == [True, True]


def test_every_call_of_a_client_that_rewrites_its_history_is_trained_on_and_counted() -> None:
    session = MadeUp()
    session.ask(system("Write a title."), user("Mend it."), reply="Mending the parser")
    history = [system("You are an agent."), user("Mend the parser, please, and tell me when you are done with it.")]
    for number in range(6):
        reply = f"Step {number}: I look at the next file of the parser."
        session.ask(*history, reply=reply)
        # Not as an assistant's message, as smolagents and DSPy do.
        history.append(user(f"Before, you said: {reply}\nObservation: {number} bugs are left in the parser."))
    assert session.choose() == [False] + [True] * 6
    asked = sum(len(turn.prompt_ids) for turn in session.record.turns)
    assert rerendered_tokens(session.record.turns) > 0.4 * asked


def test_choices_and_repeated_questions_are_one_conversation() -> None:
    session = MadeUp()
    turns = [session.ask(system("You are an agent."), user("Try."), reply=f"Try {n}") for n in range(3)]
    session.ask(user("Go on with this one."), after=turns[1], reply="Done.")
    (one,) = session.conversations()
    assert len(one.turns) == 4


def test_several_questions_with_one_prompt_are_all_the_agents_own() -> None:
    session = MadeUp()
    for n in range(3):
        session.ask(user(f"Question {n}?"), reply=f"Answer {n}.")
    assert session.choose() == [True] * 3


def test_what_was_rewarded_is_trained_on_and_each_role_has_a_main_agent() -> None:
    session = MadeUp()
    turn = begin(session)
    session.ask(result("ok"), after=turn, reply="Done.")
    session.ask(user("How sure are you?"), reply="Quite.", reward=1.0, model="small")
    session.ask(user("Was that right?"), reply="Yes.", role="critic")
    assert session.choose() == [True] * 3


def test_tools_that_change_on_the_way_make_no_other_agent() -> None:
    session = MadeUp()
    first = session.ask(system("You are an agent."), user("Mend it."), tools="bash", reply="I look at the parser.")
    session.ask(*session.history[first], user("Go on."), tools="bash edit", reply="Done.")
    assert session.choose() == [True, True]


def test_a_function_chooses_and_may_name_a_role_that_earns_its_own_reward() -> None:
    session = MadeUp()
    turn = begin(session, role="solver")
    session.ask(user("A title?"), reply="Mending", model="small", role="solver")
    session.ask(result("ok"), after=turn, reply="Done.", role="solver")
    session.record.reward_roles({"solver": 0.25, "titles": 0.5})
    session.choose(lambda one: "titles" if one.model == "small" else bool(one.tools), {"titles": 0.5})
    assert [turn.role for turn in session.record.turns] == ["solver", "titles", "solver"]
    assert [turn.role_reward for turn in session.record.turns] == [0.25, 0.5, 0.25]
    assert session.choose(lambda one: not one.tools) == [False, True]
    for wrong in (lambda one: 1, lambda one: "two words", lambda one: None):
        with pytest.raises(EpisodeError, match="return True, False, or a role"):
            session.choose(wrong)
    with pytest.raises(EpisodeError, match='set it to "main", "all" or a function'):
        session.choose("side")


def test_a_label_is_no_part_of_a_system_prompt() -> None:
    label = "x-anthropic-billing-header: cc_version=2.1.197.644; cc_entrypoint=sdk-cli;"
    messages = [system(f"{label}You are an agent."), system("More."), user("Hello"), system("Later.")]
    assert system_prompt(messages) == "You are an agent.\nMore."


WORDS = st.sampled_from(["", "yes", "the bug is in line 12", "look at the next file"])
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
def test_every_turn_is_in_one_conversation_and_only_what_is_left_out_is_not_trained_on(
    calls: list[dict[str, Any]],
) -> None:
    before, everything, main = made_up(calls), made_up(calls), made_up(calls)
    conversations = before.conversations()
    assert sorted(id(turn) for one in conversations for turn in one.turns) == sorted(map(id, before.record.turns))
    for one in conversations:
        for turn in one.turns:
            assert turn.parent is None or turn.parent in one.turns

    assert all(everything.choose("all"))
    chosen = main.choose("main")
    assert chosen == made_up(calls).choose("main"), "it depends on what was asked alone"
    for role in {one.role for one in conversations}:  # an agent is never left out as a whole
        assert any(kept for kept, one in zip(chosen, conversations, strict=True) if one.role == role)
    whole = trained(before.record)
    assert trained(everything.record) == whole
    index_of = {turn: index for index, turn in enumerate(before.record.turns)}
    left_out = {
        index_of[turn] for kept, one in zip(chosen, conversations, strict=True) if not kept for turn in one.turns
    }
    assert trained(main.record) == {token for token in whole if token[0] not in left_out}
    for session in (everything, main):  # nothing that was recorded is lost
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
