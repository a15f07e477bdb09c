"""What both sides have is one thing: each is told what the other makes of it, until nobody holds it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes.inside.mirror import LARGEST_MIRRORED, SMALL
from agentrl.sandboxes.inside.mirrors_of_candidate import MirrorsOfCandidate
from agentrl.sandboxes.inside.mirrors_of_tests import MOST_MIRRORED, MirrorsOfTests
from agentrl.sandboxes.inside.plain_data import NO_ITEMS, Items, NotPlainError
from agentrl.sandboxes.inside.plain_decoding import decode
from agentrl.sandboxes.inside.plain_encoding import encode as encode_plain


def encode(value: Any, items: Items = NO_ITEMS) -> Any:
    return encode_plain(value, items=items)


def no_object(reference: Any) -> Any:
    raise NotPlainError(str(reference))


def plain(content: Any) -> Any:
    """A content without the numbers of what is in it."""
    return decode(content, lambda reference: reference["item"][2])


class Sides:
    """A candidate's side and the tests', and what passes between them."""

    def __init__(self) -> None:
        self.candidate, self.tests = MirrorsOfCandidate(encode), MirrorsOfTests(encode)

    def mirror(self, value: Any) -> tuple[int, Any]:
        """Mirror a value of the tests' for a call; its number, and the candidate's own."""
        number, data = self.tests.mirror(value)
        own = decode(json.loads(json.dumps(data)), lambda reference: self.candidate.part(*reference["item"][1:]))
        self.candidate.take(number, own)
        return number, own

    def give(self, value: Any) -> Any:
        """Give a value of the candidate's that it holds; the tests' own."""
        items = self.candidate.items()
        number = self.candidate.mirror([value])
        assert number is not None
        data = json.loads(json.dumps(self.candidate.content(number, items)))
        made = self.tests.note(number, decode(data, lambda reference: self.tests.part(*reference["item"])))
        self.tests.forget_parts()
        return made

    def tell_tests(self) -> None:
        changed = self.candidate.changed()
        self.candidate.tell(changed)
        for number, data in changed.items():
            self.tests.hear(number, json.loads(json.dumps(data)), no_object)

    def tell_candidate(self) -> None:
        self.candidate.take_back(json.loads(json.dumps(self.tests.changes())), no_object)


def test_what_no_test_holds_is_given_back() -> None:
    tests = MirrorsOfTests(encode)
    held = tests.note(1, [1])
    tests.note(2, [2])
    inner = tests.note(3, [[3]])[0]
    assert tests.changes() == {"contents": [], "released": [2]}
    held.append(4)
    inner.append(5)
    contents = tests.changes()["contents"]
    assert [(number, plain(before), plain(after)) for number, before, after in contents] == [
        (1, [1], [1, 4]),
        (3, [[3]], [[3, 5]]),
    ]
    assert tests.changes() == {}
    del held, inner
    assert tests.changes() == {"contents": [], "released": [1, 3]}


def test_what_a_test_gives_back_is_named_and_kept_until_it_has_arrived() -> None:
    tests = MirrorsOfTests(encode)
    tests.note(1, [1])
    value = tests.note(2, [2])
    assert tests.number([2]) is None
    assert tests.number(value) == 2
    del value
    assert tests.changes() == {"contents": [], "released": [1]}
    assert tests.changes() == {"contents": [], "released": [2]}


def test_an_argument_is_known_until_its_call_has_ended_and_while_the_candidate_holds_it() -> None:
    tests = MirrorsOfTests(encode)
    kept, other = [1], [2]
    numbers = [tests.mirror(value)[0] for value in (kept, other)]
    assert numbers == [-1, -2]
    tests.begin_call(numbers)
    kept.append(3)
    assert [number for number, *_ in tests.changes()["contents"]] == [-1]
    tests.drop([-2])
    assert tests.number(other) == -2, "the call has not ended"
    tests.end_call(numbers)
    assert (tests.number(kept), tests.number(other)) == (-1, None)


def test_an_argument_of_two_calls_is_known_until_both_have_ended() -> None:
    tests, value = MirrorsOfTests(encode), [1]
    number, _ = tests.mirror(value)
    tests.begin_call([number])
    tests.begin_call([number])
    tests.drop([number])
    tests.end_call([number])
    assert tests.number(value) == number
    tests.end_call([number])
    assert tests.number(value) is None


def test_a_large_argument_is_not_looked_at_within_its_call() -> None:
    tests, value = MirrorsOfTests(encode), [0] * (SMALL)
    number, _ = tests.mirror(value)
    tests.begin_call([number])
    value.append(1)
    assert tests.changes() == {}
    tests.end_call([number])
    assert len(tests.changes()["contents"]) == 1


def test_what_is_mirrored_again_is_the_same_as_long_as_it_has_the_same_content() -> None:
    tests = MirrorsOfTests(encode)
    first = tests.note(1, [1])
    assert tests.note(1, [1]) is first
    assert tests.note(1, [True]) is not first
    own = [5]
    number, _ = tests.mirror(own)
    assert tests.note(number, [5]) is own
    assert tests.note(number, [6]) == [6]
    assert own == [5]
    assert tests.note("x", [7]) == [7]


def test_a_part_of_what_both_have_is_that_part_if_it_has_the_content() -> None:
    tests = MirrorsOfTests(encode)
    rows = [[1], {"a": [2]}]
    number, _ = tests.mirror(rows)
    assert tests.part(number, 0, [[1], {"a": [2]}]) is rows
    assert tests.part(number, 2, [1]) is rows[0]
    for nothing in ((number, 2, [3]), (number, 99, [1]), (99, 0, [1])):
        assert tests.part(*nothing) is nothing[2]


def test_no_more_is_tests_than_every_request_can_look_at() -> None:
    tests = MirrorsOfTests(encode)
    held = [tests.note(number, [number] * 1_000) for number in range(1, 101)]
    tests.changes()
    assert 0 < len(str(held[-1])) < MOST_MIRRORED < sum(len(str(value)) for value in held)
    held[0].append(1)
    held[-1].pop()
    assert [number for number, *_ in tests.changes()["contents"]] == [100]


def test_a_candidate_has_mirrored_what_it_holds_itself() -> None:
    candidate, value = MirrorsOfCandidate(encode), [1]
    assert candidate.mirror([value]) == candidate.mirror([value]) == 1
    assert candidate.mirror([[2]]) is None
    assert candidate.mirror([[value]]) == 2, "somebody holds what is in it"
    candidate.take_back({"released": [1, 7]}, no_object)
    assert candidate.mirror([value]) == 3
    large, constant = [0] * (LARGEST_MIRRORED + 1), (1,)
    assert candidate.mirror([large]) is candidate.mirror([constant]) is None


def test_what_both_have_is_told_of_once_when_it_has_changed() -> None:
    sides, value = Sides(), [1]
    _, own = sides.mirror(value)
    assert sides.candidate.changed() == {}
    own.append(2)
    assert sides.candidate.changed() == sides.candidate.changed() != {}
    sides.tell_tests()
    assert (value, sides.candidate.changed(), sides.tests.changes()) == ([1, 2], {}, {})
    value.append(3)
    sides.tell_candidate()
    assert (own, sides.candidate.changed(), sides.tests.changes()) == ([1, 2, 3], {}, {})
    own[0] = True
    assert len(sides.candidate.changed()) == 1, "True is equal to 1, and is another value"


def test_within_a_call_only_what_is_small_is_looked_at() -> None:
    candidate, small, large = MirrorsOfCandidate(encode), [1], [1] * (SMALL)
    candidate.take(-1, small)
    candidate.take(-2, large)
    small.append(2)
    large.append(2)
    assert [*candidate.changed(small=True)] == [-1]
    assert [*candidate.changed()] == [-1, -2]


def test_what_nobody_of_the_candidates_holds_any_more_is_forgotten() -> None:
    candidate, held, row = MirrorsOfCandidate(encode), [1], [2]
    candidate.take(-1, held)
    candidate.take(-2, [row])
    candidate.take(-3, [[3]])
    candidate.take(-4, ([4], 5))
    assert candidate.unheld() == [-3, -4]
    del row
    assert candidate.unheld() == [-2]
    assert candidate.number(held) == -1


def test_what_has_become_no_data_is_told_to_nobody_or_an_error() -> None:
    candidate, argument = MirrorsOfCandidate(encode), [1]
    candidate.take(-1, argument)
    argument.append(argument)  # type: ignore[arg-type]
    with pytest.raises(NotPlainError, match="holds itself"):
        candidate.changed([-1])
    assert candidate.changed() == {-1: None}
    assert candidate.changed() == {}


@pytest.mark.parametrize(
    "lie",
    [
        {"item": [-1, 0, {"dict": []}]},
        {"item": [-1, 0, [{"item": [-1, 0, []]}]]},
        {"item": [-2, 0, []]},
        {"item": [-1, 0]},
        {"item": [-1, [], []]},
        {"ref": 1},
    ],
)
def test_what_no_candidate_could_have_made_of_an_argument_is_nonsense(lie: Any) -> None:
    tests = MirrorsOfTests(encode)
    number, _ = tests.mirror([[1]])
    with pytest.raises(NotPlainError):
        tests.hear(number, lie, no_object)


def change(data: st.DataObject, containers: list[Any]) -> None:
    """Do something to one of some lists, dicts and sets that may hold each other."""
    one = data.draw(st.sampled_from(containers))
    above = [other for other in containers if other is not one and not _holds(other, one)]
    value = data.draw(st.integers(0, 3) | (st.sampled_from(above) if above else st.nothing()))
    if isinstance(one, list):
        what = data.draw(st.sampled_from(["append", "insert", "pop", "reverse", "clear", "new"]))
        if what == "new":
            one.append([value])
        elif what == "insert":
            one.insert(0, value)
        elif what == "append":
            one.append(value)
        elif one or what != "pop":
            getattr(one, what)()
    elif isinstance(one, dict):
        key = data.draw(st.sampled_from("abc"))
        one.pop(key, None)
        if data.draw(st.booleans()):
            one[key] = value
    else:
        one ^= {data.draw(st.integers(0, 3))}


def _holds(one: Any, other: Any) -> bool:
    if one is other:
        return True
    inside = one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else ()
    return any(_holds(item, other) for item in inside)


def _containers(value: Any) -> list[Any]:
    """In the order in which they are met, each once."""
    found: list[Any] = []

    def look(one: Any) -> None:
        if isinstance(one, list | dict | set):
            if any(one is known for known in found):
                return
            found.append(one)
        for item in one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else ():
            look(item)

    look(value)
    return found


def shape(value: Any) -> Any:
    """What a value is, and which containers in it are which."""
    containers = _containers(value)

    def show(one: Any) -> Any:
        if isinstance(one, list | tuple):
            return [type(one).__name__, *map(show, one)] if isinstance(one, tuple) else named(one, [*map(show, one)])
        if isinstance(one, dict):
            return named(one, [(key, show(item)) for key, item in one.items()])
        return named(one, sorted(one)) if isinstance(one, set) else one

    def named(one: Any, content: Any) -> Any:
        return next(index for index, known in enumerate(containers) if known is one), content

    return show(value)


NESTED: Any = st.recursive(
    st.integers(0, 3) | st.sets(st.integers(0, 3), max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.lists(NESTED, max_size=4), data=st.data())
def test_both_sides_have_the_same_whoever_changes_it_and_each_object_stays_itself(
    value: list[Any], data: st.DataObject
) -> None:
    """As one value that two programs have would: with names that tests and candidate have for what is in it."""
    sides = Sides()
    _, own = sides.mirror(value)
    tests_names, candidates_names = _containers(value), _containers(own)
    for candidate_acts in data.draw(st.lists(st.booleans(), max_size=6)):
        acting, other = (own, value) if candidate_acts else (value, own)
        for _ in range(data.draw(st.integers(1, 3))):
            change(data, _containers(acting))
        (sides.tell_tests if candidate_acts else sides.tell_candidate)()
        assert shape(acting) == shape(other)
    for mine, theirs in zip(tests_names, candidates_names, strict=True):
        there = [one for one in _containers(value) if one is mine]
        assert len(there) == len([one for one in _containers(own) if one is theirs])


@given(value=st.lists(NESTED, max_size=4), data=st.data())
def test_what_the_candidate_has_given_is_one_value_too(value: list[Any], data: st.DataObject) -> None:
    sides = Sides()
    made = sides.give(value)
    assert shape(made) == shape(value)
    for candidate_acts in data.draw(st.lists(st.booleans(), max_size=6)):
        change(data, _containers(value if candidate_acts else made))
        (sides.tell_tests if candidate_acts else sides.tell_candidate)()
        assert shape(made) == shape(value)


def test_a_part_of_two_values_is_one_object() -> None:
    sides, row = Sides(), [1]
    rows, others = [row], [row, [2]]
    made, other = sides.give(rows), sides.give(others)
    assert made[0] is other[0]
    own = [[5]]
    _, theirs = sides.mirror(own)
    kept = [theirs[0]]
    assert sides.give(kept)[0] is own[0]


class Deck(list[int]):
    pass


@pytest.mark.parametrize("around", [list, lambda deck: [deck], lambda deck: [(deck,)], lambda deck: [((deck,), 1)]])
def test_a_change_in_a_list_of_another_class_is_seen_wherever_that_is(around: Any) -> None:
    deck = Deck([1])
    sides = Sides()
    value = [around(deck)]
    held = [value]
    sides.give(value)
    assert sides.candidate.changed() == {}
    deck.append(2)
    assert bool(sides.candidate.changed()) == (around is not list), "list() makes a copy"
    assert held


def test_what_is_too_long_to_be_told_of_again_is_a_copy() -> None:
    sides = Sides()
    held = ["x" * (MOST_MIRRORED + 1)]
    made = sides.give(held)
    made.append(1)
    told = sides.tests.changes()
    assert told == {"contents": [], "released": [1]}
    sides.candidate.take_back(told, no_object)
    assert sides.candidate.number(held) is None
