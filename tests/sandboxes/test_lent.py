"""What both sides have is one thing: each is told what the other makes of it, until nobody holds it."""

from __future__ import annotations

import pytest

from agentrl.sandboxes.inside.lent import LARGEST_LENT, LARGEST_LOANS, SMALL, Borrowed, Lender
from agentrl.sandboxes.inside.plain_data import decode, encode


def test_what_no_test_holds_is_given_back() -> None:
    borrowed = Borrowed(encode)
    held = borrowed.note(1, [1])
    borrowed.note(2, [2])
    inner = borrowed.note(3, [[3]])[0]
    assert borrowed.changes() == {"contents": [], "released": [2]}
    held.append(4)
    inner.append(5)
    assert borrowed.changes() == {"contents": [[1, [1], [1, 4]], [3, [[3]], [[3, 5]]]], "released": []}
    assert borrowed.changes() == {}
    del held, inner
    assert borrowed.changes() == {"contents": [], "released": [1, 3]}


def test_what_a_test_gives_back_is_named_and_kept_until_it_has_arrived() -> None:
    borrowed = Borrowed(encode)
    borrowed.note(1, [1])
    value = borrowed.note(2, [2])
    assert borrowed.number([2]) is None
    assert borrowed.number(value) == 2
    del value
    assert borrowed.changes() == {"contents": [], "released": [1]}
    assert borrowed.changes() == {"contents": [], "released": [2]}


def test_an_argument_is_known_until_its_call_has_ended_and_while_the_candidate_holds_it() -> None:
    borrowed = Borrowed(encode)
    kept, other = [1], [2]
    numbers = [borrowed.lend(value, encode(value)) for value in (kept, other)]
    assert numbers == [-1, -2]
    borrowed.begin_call(numbers)
    kept.append(3)
    assert borrowed.changes() == {"contents": [[-1, [1], [1, 3]]], "released": []}
    borrowed.drop([-2])
    assert borrowed.number(other) == -2, "the call has not ended"
    borrowed.end_call(numbers)
    assert (borrowed.number(kept), borrowed.number(other)) == (-1, None)


def test_an_argument_of_two_calls_is_known_until_both_have_ended() -> None:
    borrowed, value = Borrowed(encode), [1]
    number = borrowed.lend(value, [1])
    borrowed.begin_call([number])
    borrowed.begin_call([number])
    borrowed.drop([number])
    borrowed.end_call([number])
    assert borrowed.number(value) == number
    borrowed.end_call([number])
    assert borrowed.number(value) is None


def test_a_large_argument_is_not_looked_at_within_its_call() -> None:
    borrowed, value = Borrowed(encode), [0] * (SMALL + 1)
    number = borrowed.lend(value, encode(value))
    borrowed.begin_call([number])
    value.append(1)
    assert borrowed.changes() == {}
    borrowed.end_call([number])
    assert len(borrowed.changes()["contents"]) == 1


def test_what_the_candidate_has_told_is_not_told_to_it() -> None:
    borrowed = Borrowed(encode)
    value = borrowed.note(1, [1])
    borrowed.hear(1, [1, 2], of_call=False)
    assert value == [1, 2]
    assert borrowed.changes() == {}


def test_what_both_change_stays_the_tests_but_for_an_argument_of_the_call() -> None:
    borrowed = Borrowed(encode)
    value = borrowed.note(1, [1])
    value.append(2)
    borrowed.hear(1, [9], of_call=False)
    borrowed.hear(2, [9], of_call=False)
    assert value == [1, 2]
    borrowed.hear(1, [9], of_call=True)
    assert value == [9]


def test_what_is_lent_again_is_the_same_as_long_as_it_has_the_same_content() -> None:
    borrowed = Borrowed(encode)
    first = borrowed.note(1, [1])
    assert borrowed.note(1, [1]) is first
    assert borrowed.note(1, [True]) is not first
    own = [5]
    number = borrowed.lend(own, [5])
    assert borrowed.note(number, [5]) is own
    assert borrowed.note(number, [6]) == [6]
    assert own == [5]
    assert borrowed.note("x", [7]) == [7]


def test_an_item_of_what_both_have_is_that_item_if_it_has_the_content() -> None:
    borrowed = Borrowed(encode)
    rows = [[1], {"a": [2]}]
    number = borrowed.lend(rows, encode(rows))
    assert borrowed.item(number, [0], [1]) is rows[0]
    assert borrowed.item(number, [1, 0], [2]) is rows[1]["a"]
    assert borrowed.item(number, [0], [3]) is not rows[0]
    assert borrowed.item(99, [0], [1]) == [1]
    assert borrowed.item(number, [7, 0], [1]) == [1]


def test_no_more_is_borrowed_than_every_request_can_look_at() -> None:
    borrowed = Borrowed(encode)
    held = [borrowed.note(number, [number] * 1_000) for number in range(1, 101)]
    borrowed.changes()
    assert 0 < len(str(held[-1])) < LARGEST_LOANS < sum(len(str(loan)) for loan in held)
    held[0].append(1)
    held[-1].pop()
    assert [number for number, *_ in borrowed.changes()["contents"]] == [100]


def test_a_candidate_lends_what_it_holds_itself() -> None:
    lender, value = Lender(encode), [1]
    assert lender.lend([value], [1]) == lender.lend([value], [1]) == 1
    assert lender.lend([[2]], [2]) is None
    assert lender.lend([[value]], [[1]]) == 2, "somebody holds what is in it"
    lender.take_back({"contents": [[1, [1], [1, 2]]], "released": [1]}, decode)
    assert value == [1, 2]
    assert lender.lend([value], [1, 2]) == 3
    large, plain = [0] * (LARGEST_LENT + 1), (1,)
    assert lender.lend([large], large) is lender.lend([plain], plain) is None


def test_what_both_have_is_told_of_once_when_it_has_changed() -> None:
    lender, argument = Lender(encode), [1]
    lender.take(-1, argument)
    assert lender.changed() == {}
    argument.append(2)
    assert lender.changed() == lender.changed() == {-1: [1, 2]}
    lender.tell(lender.changed())
    assert lender.changed() == {}
    lender.take_back({"contents": [[-1, [1, 2], [1, 2, 3]]]}, decode)
    assert (argument, lender.changed()) == ([1, 2, 3], {})
    argument[0] = True
    assert lender.changed() == {-1: [True, 2, 3]}, "True is equal to 1, and is another value"
    lender.take_back({"released": [-1, -7]}, decode)
    assert lender.changed() == {}


def test_within_a_call_only_what_is_small_is_looked_at() -> None:
    lender, small, large = Lender(encode), [1], [1] * (SMALL + 1)
    lender.take(-1, small)
    lender.take(-2, large)
    small.append(2)
    large.append(2)
    assert [*lender.changed(small=True)] == [-1]
    assert [*lender.changed()] == [-1, -2]


def test_what_nobody_of_the_candidates_holds_any_more_is_forgotten() -> None:
    lender, held, row = Lender(encode), [1], [2]
    lender.take(-1, held)
    lender.take(-2, [row])
    lender.take(-3, [[3]])
    lender.take(-4, ([4], 5))
    assert lender.unheld() == [-3, -4]
    del row
    assert lender.unheld() == [-2]
    assert lender.number(held) == -1


def test_where_containers_are_in_what_both_have() -> None:
    lender = Lender(encode)
    inner: list[int] = []
    rows = [1, {"a": (inner,)}]
    lender.take(-1, rows)
    found = lender.items()
    assert [found[id(one)] for one in (rows, rows[1], inner)] == [[-1, []], [-1, [1]], [-1, [1, 0, 0]]]


def test_what_has_become_no_data_is_told_to_nobody_or_an_error() -> None:
    lender, argument = Lender(encode), [1]
    lender.take(-1, argument)
    argument.append(argument)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="holds itself"):
        lender.changed([-1])
    assert lender.changed() == {-1: None}
    assert lender.changed() == {}
