"""A list that two have is one list: whoever has it sees what the other does to it, as in plain Python."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrl.sandboxes import AssertTest, BackendName, Limits, SandboxPool, SandboxSpec, grade, open_pool
from tests.sandboxes.inside.shared_cases import pairs, right

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def pool(bubblewrap: BackendName) -> AsyncIterator[SandboxPool]:
    async with open_pool(SandboxSpec(limits=Limits(timeout_s=5, memory_mb=300)), backend=bubblewrap, size=2) as pool:
        yield pool


def passes_in_plain_python(source: str, code: str) -> bool:
    space: dict[str, object] = {}
    exec(source, space)
    try:
        exec(code, space)
    except AssertionError:
        return False
    return True


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_program_passes_where_plain_python_passes_it(pool: SandboxPool) -> None:
    assert len(pairs()) > 20
    for name, (good, bad, code) in pairs().items():
        for source, passes in ((good, True), (bad, False)):
            assert passes_in_plain_python(source, code) == passes, name
            verdict = await grade(source, [AssertTest(code=code)], pool=pool)
            assert verdict.passed == passes, (name, verdict.results)
            assert verdict.status != "checker_error", (name, verdict.results)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_what_is_reached_in_two_ways_is_one_thing(pool: SandboxPool) -> None:
    for name, (source, code) in right().items():
        assert passes_in_plain_python(source, code), name
        for in_place in (None, True):
            verdict = await grade(source, [AssertTest(code=code, in_place=in_place)], pool=pool)
            assert verdict.passed, (name, in_place, verdict.results)


async def test_a_callback_sees_the_argument_only_where_changes_are_seen(pool: SandboxPool) -> None:
    """In the first run a program could answer when it has seen what is expected."""
    source = "def drain(xs, f):\n    while xs:\n        xs.pop()\n        f()"
    code = "xs = [1, 2, 3]\nseen = []\ndrain(xs, lambda: seen.append(len(xs)))\nassert seen == [2, 1, 0] and xs == []"
    for in_place in (True, None):
        verdict = await grade(source, [AssertTest(code=code, in_place=in_place)], pool=pool)
        assert verdict.passed == bool(in_place), verdict.results


async def test_what_a_program_has_put_into_an_argument_and_gives_back_is_there(pool: SandboxPool) -> None:
    """The test's own has it only where changes are seen."""
    source = "def add(graph, node): return graph.setdefault(node, [])\ndef insert(rows, row):\n    rows.insert(0, row)\n    return rows[1:]"
    for code, passes in (
        ("assert add({'a': [1]}, 'b') == []", True),
        ("rows = [[1], [2]]\nassert insert(rows, [0]) == [[1], [2]]", True),
        ("graph = {}\nadd(graph, 'a').append('b')\nassert graph == {'a': ['b']}", False),
    ):
        verdict = await grade(source, [AssertTest(code=code)], pool=pool)
        assert verdict.passed == passes, (code, verdict.results)
        verdict = await grade(source, [AssertTest(code=code, in_place=True)], pool=pool)
        assert verdict.passed, (code, verdict.results)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_thousands_of_callbacks_with_a_list_take_no_time_to_speak_of(pool: SandboxPool) -> None:
    source = "def order(xs, before):\n    import functools\n    xs.sort(key=functools.cmp_to_key(lambda a, b: -1 if before(a, b) else 1))"
    code = "xs = [*range(600)][::-1]\norder(xs, lambda a, b: a < b)\nassert xs == [*range(600)]"
    verdict = await grade(source, [AssertTest(code=code)], pool=pool, limits=Limits(timeout_s=5, memory_mb=300))
    assert verdict.passed, verdict.results
