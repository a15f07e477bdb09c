"""Sessions stay with their server, unless another is much less busy."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from agentrl.engine.client.fleet import Router


@dataclass(eq=False)
class Server:
    in_flight: int = 0


def test_a_session_stays_and_a_new_one_goes_to_the_idlest() -> None:
    a, b = Server(), Server()
    router = Router(balance_threshold=2)
    assert [router.choose(name, [a, b]) for name in ("one", "two")] == [a, b], "the first has a session already"
    a.in_flight = 2
    assert router.choose("one", [a, b]) is a
    assert router.choose("three", [a, b]) is b


def test_a_session_moves_when_its_server_is_too_busy_or_out_of_service_and_stays_where_it_went() -> None:
    a, b = Server(), Server()
    router = Router(balance_threshold=2)
    router.choose("one", [a, b])
    a.in_flight = 3
    assert router.choose("one", [a, b]) is b
    a.in_flight = 0
    assert router.choose("one", [a, b]) is b
    assert router.choose("one", [a]) is a


def test_nothing_is_kept_of_a_session_that_ended() -> None:
    a, b = Server(), Server()
    router = Router(balance_threshold=2)
    router.choose("one", [a, b])
    router.forget("one")
    assert router.choose("two", [a, b]) is a, "it has no session"
    assert list(router._server_of) == ["two"]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60), st.integers(0, 3))
def test_no_server_is_chosen_that_is_busier_than_the_idlest_by_more_than_the_threshold(
    calls: list[tuple[int, bool]], balance_threshold: int
) -> None:
    servers = [Server(), Server(), Server()]
    router = Router(balance_threshold)
    for session, ends in calls:
        chosen = router.choose(str(session), servers)
        assert chosen.in_flight - min(s.in_flight for s in servers) <= balance_threshold
        chosen.in_flight += 1
        if ends:
            router.forget(str(session))
            servers[session % 3].in_flight = max(0, servers[session % 3].in_flight - 1)
