"""Tasks as they stand in files: agentrl's own form, and the rows of data sets; each is graded by its own reference."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from agentrl.errors import ConfigError
from agentrl.sandboxes import (
    CPP,
    JAVA,
    PYTHON,
    AssertTest,
    CallTest,
    Checker,
    CodeTask,
    Comparison,
    IOTest,
    SandboxPool,
    TestFile,
    Verdict,
    grade,
    load_code_task,
    load_tests,
)
from tests.sandboxes.grading.honest_sets import stdin_problems

Row = Mapping[str, Any]
TEXT_TEST = {"kind": "io", "stdout": ""}


def packed(tests: list[dict[str, str]]) -> str:
    """The private tests of LiveCodeBench, as its data set has them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def cases(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"input": given, "output": wanted, "testtype": "functional"} for given, wanted in pairs]


SUM, SUM_METHOD = "def add(a, b): return a + b", "class Solution:\n    def add(self, a, b): return a + b"
LIVECODEBENCH = {
    "question_id": "3233",
    "question_content": "Add.",
    "starter_code": "class Solution:\n    def minCost(self, nums: List[int], k: int) -> int:\n        ",
    "public_test_cases": json.dumps(cases(("[1, 2, 3]\n2", "3"))),
    "private_test_cases": packed(cases(("[7]\n1", "7"), ("[]\n4", "0"))),
    "metadata": '{"func_name": "minCost"}',
}
CONTEST = {
    "name": "1_A. Twice",
    "description": "Print the number twice.",
    "public_tests": {"input": ["1\n"], "output": ["1 1\n"]},
    "private_tests": {"input": [], "output": []},
    "generated_tests": {"input": ["2\n"], "output": ["2 2\n"]},
    "solutions": {"language": [1, 2, 3], "solution": ["print 1", "int main() {}", "n = input()\nprint(n, n)"]},
    "time_limit": {"seconds": 2, "nanos": 500_000_000},
    "memory_limit_bytes": 256_000_000,
}
CODEFORCES = {
    "id": "1/A",
    "description": "Print a number that is not n.",
    "input_format": "n",
    "output_format": "Any other.",
    "examples": [{"input": "1", "output": "2"}],
    "official_tests": [{"input": "1", "output": "2"}, {"input": "3", "output": "4"}],
    "time_limit": 1.5,
    "memory_limit": 256.0,
    "input_mode": "stdio",
    "interaction_format": None,
    "generated_tests": 3,
    "generated_checker": "import sys\ntests = [open(path).read().strip() for path in sys.argv[1:]]\n"
    "print(1 if tests[1].isdigit() and tests[0] != tests[2] else 0)",
}
FUNCTION_IN_PYTHON = "Write a program (python) that defines the function, in one fenced code block."
PRINTS = "Write a program ({}) that reads standard input and prints the answer, in one fenced code block."
OF_CONTEST = {"timeout_s": 2.5, "memory_mb": 244}
PAIRS = {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}
WRAPPED = CallTest(function="add", args=[1, 2], expected=[3], wrapped=True)


@pytest.mark.parametrize(
    ("row", "name", "prompt", "tests", "public", "reference"),
    [
        pytest.param(
            {"name": "n", "prompt": "P", "tests": [TEXT_TEST], "public_tests": [{**TEXT_TEST, "stdin": "1"}], "solution": "```python\nS\n```"},
            "n", "P", [IOTest()], [IOTest(stdin="1")], "S", id="own, with a fence around the solution",
        ),
        pytest.param(
            {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    pass\n", "test": "T", "entry_point": "f"},
            "HumanEval/0", "Write this Python program to its end.\n\n```python\ndef f():\n```",
            [AssertTest(code="T", entry_point="f", prelude="def f():\n    pass\n")], [], "def f():\n    pass\n", id="HumanEval",
        ),
        pytest.param(
            {"task_id": 3, "text": "Write sum.", "code": "def sum(): 1", "test_list": ["assert sum()"], "test_setup_code": "x = 1",
             "test_imports": ["import math"], "challenge_test_list": []},
            "3", "Write sum.\n\nThis must pass:\n\n```python\nassert sum()\n```",
            [AssertTest(code="assert sum()", prelude="import math\nx = 1", candidate_names=("sum",))],
            [AssertTest(code="assert sum()", prelude="import math\nx = 1", candidate_names=("sum",))], "def sum(): 1", id="MBPP",
        ),
        pytest.param(
            {"task_id": 3, "prompt": "Double.", "code": "", "test_list": ["assert f(1) == 2"], "test": "for n in range(9): assert f(n) == 2 * n"},
            "3", "Double.\n\nThis must pass:\n\n```python\nassert f(1) == 2\n```",
            [AssertTest(code="for n in range(9): assert f(n) == 2 * n")], [AssertTest(code="assert f(1) == 2")], None, id="MBPP+",
        ),
        pytest.param(
            {"question": "Q", "starter_code": "", "solutions": "", "input_output": {"inputs": ["1"], "outputs": ["2"]}},
            "task 9", f"Q\n\n{PRINTS.format('python')}", [IOTest(stdin="1", stdout="2")], [], None, id="APPS, without solutions",
        ),
        pytest.param(
            {"problem_id": 7, "question": "Add.", "starter_code": "def add(a, b):", "input_output": json.dumps(PAIRS),
             "solutions": json.dumps([SUM, "x"]), "difficulty": "interview", "url": "u"},
            "7", f"Add.\n\n```python\ndef add(a, b):\n```\n\n{FUNCTION_IN_PYTHON}", [WRAPPED], [], SUM, id="APPS, a function",
        ),
        pytest.param(
            {"question": "Q", "starter_code": "", "input_output": {"inputs": ["1 2", ["3", "4"]], "outputs": ["3\n", ["7"]]},
             "solutions": "[]", "time_limit": "2.0 seconds", "memory_limit": "256.0 megabytes"},
            "task 9", f"Q\n\n{PRINTS.format('python')}", [IOTest(stdin="1 2", stdout="3\n"), IOTest(stdin="3\n4", stdout="7")], [], None,
            id="TACO, input and output",
        ),
        pytest.param(
            {"prompt": "Just this.", "question": "Q", "input_output": PAIRS, "solution": SUM_METHOD},
            "task 9", "Just this.", [WRAPPED], [], SUM_METHOD, id="a prompt of its own",
        ),
        pytest.param(
            {"question_content": "Q", "input_output": {"fn_name": "minCost", "inputs": ["[1, 2, 3]\n2"], "outputs": ["6"]}},
            "task 9", f"Q\n\n{FUNCTION_IN_PYTHON}", [CallTest(function="minCost", args=[[1, 2, 3], 2], expected=6)], [], None,
            id="LiveCodeBench, as it is evaluated",
        ),
        pytest.param(
            LIVECODEBENCH, "3233", f"Add.\n\n```python\n{LIVECODEBENCH['starter_code'].strip()}\n```\n\n{FUNCTION_IN_PYTHON}",
            [CallTest(function="minCost", args=args, expected=wanted) for args, wanted in (([[1, 2, 3], 2], 3), ([[7], 1], 7), ([[], 4], 0))],
            [CallTest(function="minCost", args=[[1, 2, 3], 2], expected=3)], None, id="LiveCodeBench, raw",
        ),
        pytest.param(
            {"question_content": "Q", "starter_code": "", "public_test_cases": cases(("1", "2")), "private_test_cases": "[]", "metadata": "{}"},
            "task 9", f"Q\n\n{PRINTS.format('python')}", [IOTest(stdin="1", stdout="2")], [IOTest(stdin="1", stdout="2")], None,
            id="LiveCodeBench, input and output",
        ),
        pytest.param(
            {**CONTEST, "language": "cpp"}, "1_A. Twice", f"Print the number twice.\n\n{PRINTS.format('cpp')}",
            [IOTest(stdin="1\n", stdout="1 1\n", limits=OF_CONTEST), IOTest(stdin="2\n", stdout="2 2\n", limits=OF_CONTEST)],
            [IOTest(stdin="1\n", stdout="1 1\n", limits=OF_CONTEST)], "int main() {}", id="CodeContests",
        ),
    ],
)  # fmt: skip
def test_each_form(
    row: Row, name: str, prompt: str, tests: list[Any], public: list[Any], reference: str | None
) -> None:
    task = load_code_task(row, 9)
    assert (task.name, task.prompt, task.reference) == (name, prompt, reference)
    assert ([*task.tests], [*task.public_tests]) == (tests, public)


def test_a_row_of_codeforces_has_its_limits_its_examples_and_its_checker() -> None:
    task = load_code_task(CODEFORCES)
    assert task.prompt.startswith(
        "Print a number that is not n.\n\nn\n\nAny other.\n\nInput:\n1\nOutput:\n2\n\nWrite a program"
    )
    assert [(test.stdin, test.stdout) for test in task.tests if isinstance(test, IOTest)] == [("1", "2"), ("3", "4")]
    assert [test.limits for test in task.tests] == [{"timeout_s": 1.5, "memory_mb": 256}] * 2
    assert load_code_task({**CODEFORCES, "limits": {"timeout_s": 9}}).tests[0].limits == {
        "timeout_s": 9,
        "memory_mb": 256,
    }
    with pytest.raises(ConfigError, match="interactive or reads a file"):
        load_code_task({**CODEFORCES, "input_mode": "file"})


@pytest.mark.parametrize(
    ("named", "language"),
    [("python3", PYTHON), ("Python", PYTHON), ("cpp", CPP), ("c++", CPP), ("java", JAVA), (None, PYTHON)],
)
def test_a_language_has_the_names_that_rows_give_it(named: str | None, language: Any) -> None:
    assert load_code_task({"tests": [TEXT_TEST], "language": named}).language == language
    assert load_code_task({"input_output": PAIRS, "language": "English"}).language == PYTHON


def test_a_tasks_limits_are_those_of_its_tests_that_have_none() -> None:
    tests = [TEXT_TEST, {**TEXT_TEST, "limits": {"timeout_s": 1}}]
    task = load_code_task({"limits": {"timeout_s": 3, "memory_mb": 100}, "tests": tests})
    assert [test.limits for test in task.tests] == [
        {"timeout_s": 3, "memory_mb": 100},
        {"timeout_s": 1, "memory_mb": 100},
    ]


def test_a_tasks_tolerance_is_that_of_its_tests_that_have_none() -> None:
    tests = [TEXT_TEST, {**TEXT_TEST, "exact": True}, {"kind": "call", "function": "f", "expected": 0.5}]
    task = load_code_task({"tolerance": 1e-5, "tests": tests})
    assert [*task.tests] == [
        IOTest(compare=Comparison(absolute=1e-5, relative=1e-5)),
        IOTest(compare=Comparison(exact=True)),
        CallTest(function="f", expected=0.5, tolerance=1e-5),
    ]


def test_each_kind_of_test() -> None:
    content: list[dict[str, Any]] = [
        {"kind": "io", "stdin": "1", "stdout": "2", "function": None, "args": None, "expected": None},
        {"kind": "io", "stdout": "2", "exact": True},
        {"kind": "io", "stdout": "2", "tolerance": 0.1},
        {"kind": "io", "stdout": "2", "tolerance": {"absolute": 0.1}},
        {"kind": "io", "exact": False, "checker": "import sys"},
        {"kind": "call", "function": "f", "args": [1], "expected": None, "limits": {"timeout_s": 2}},
        {"kind": "assert", "code": "assert f(1) == 2", "name": "first"},
        {"kind": "file", "code": "", "framework": "unittest"},
    ]
    assert load_tests(content) == [
        IOTest(stdin="1", stdout="2"),
        IOTest(stdout="2", compare=Comparison(exact=True)),
        IOTest(stdout="2", compare=Comparison(absolute=0.1, relative=0.1)),
        IOTest(stdout="2", compare=Comparison(absolute=0.1)),
        IOTest(compare=Checker(source="import sys")),
        CallTest(function="f", args=[1], expected=None, limits={"timeout_s": 2}),
        AssertTest(code="assert f(1) == 2", name="first"),
        TestFile(code="", framework="unittest"),
    ]


class Harm:
    """Something that a pickle could run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("harm",)


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ("x", "task = 'x' must be a valid dictionary"),
        ({"prompt": "p", "x": 1, "tests": None}, "no tests: a task has one of tests, .*this one has prompt, x"),
        ({"question": "Q", "solutions": "", "input_output": ""}, "no tests: a task has one of .*; this one has question"),
        (
            {"task_id": "BigCodeBench/0", "complete_prompt": "p", "test": "class TestCases", "entry_point": "task_func"},
            "a task with entry_point is read as HumanEval's, which has prompt too; give it those",
        ),
        ({"tests": [TEXT_TEST], "limits": {"seconds": 3}}, "limits has an unknown field 'seconds'"),
        ({"tests": [TEXT_TEST], "limits": 3}, "limits = 3 must be a valid dictionary"),
        ({"tests": [TEXT_TEST], "prompt": 3}, "prompt = 3 must be a valid string"),
        ({"tests": [TEXT_TEST], "language": "rust"}, "language = 'rust' must be one of python, "),
        ({"tests": [TEXT_TEST], "partial": "no"}, "partial = 'no' must be a valid boolean"),
        ({"tests": [TEXT_TEST], "baseline": 3}, "baseline = 3 must be"),
        ({"tests": [TEXT_TEST], "baseline": [1.5]}, r"baseline = \[1.5\], whose 1.5 must be less than or equal to 1"),
        ({"tests": [TEXT_TEST], "baseline": []}, "baseline is of 0 tests, and there are 1; vet the task again"),
        ({"tests": [TEXT_TEST], "public_tests": [3]}, r"public_tests\[0\] = 3 must be an object"),
        ({"tests": [TEXT_TEST], "tolerance": "x"}, "the task: Comparison.absolute = 'x' must be a valid number"),
        ({"tests": [{"stdin": "1"}]}, r"tests\[0\] = .* with a kind: one of io, call, assert, file"),
        ({"tests": [TEXT_TEST, {"kind": "io", "stdout": "", "x": 3}]}, r"tests\[1\]: .* argument 'x'"),
        ({"tests": [{"kind": "io"}]}, r"tests\[0\] has no field 'stdout', which it needs without a checker"),
        ({"tests": [{**TEXT_TEST, "tolerance": {"digits": 3}}]}, r"tests\[0\]: .*argument 'digits'"),
        ({"tests": [{**TEXT_TEST, "exact": True, "tolerance": 1}]}, r"tests\[0\]: Comparison.exact = True .* leave one"),
        ({"tests": [{**TEXT_TEST, "exact": True, "checker": "x"}]}, r"tests\[0\] has a checker and exact"),
        ({"tests": [{**TEXT_TEST, "compare": "exact"}]}, r"tests\[0\]: IOTest.compare = 'exact' must be an instance of Comparison"),
        ({"tests": [{"kind": "io", "checker": 3}]}, r"tests\[0\]: Checker.source = 3 must be a valid string"),
        ({"tests": [{"kind": "assert"}]}, r"tests\[0\]: .*'code'"),
        ({"tests": [{"kind": "call", "function": "f"}]}, r"tests\[0\] has no field 'expected'"),
        ({"test_list": "assert f()"}, r"test_list = 'assert f\(\)' must be a valid list"),
        ({"input_output": "{"}, "input_output is a text that is not JSON"),
        ({"input_output": {"inputs": [1], "outputs": []}}, "input_output = .* must hold inputs and outputs, as many of each"),
        ({"input_output": {"inputs": [1], "outputs": [1]}}, r"input_output\[0\]: IOTest.stdin = 1 must be a valid string"),
        ({"input_output": {"inputs": [1], "outputs": [1], "fn_name": "f"}}, r"input_output\[0\]: CallTest.args = 1 must be"),
        ({"input_output": {"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}}, r"input_output\[0\] is a text that is not JSON"),
        ({"input_output": PAIRS, "solutions": {"a": 1}}, "solutions = .* must be a valid list"),
        ({"public_test_cases": "[]", "private_test_cases": packed([])[:-8]}, "private_test_cases is a text that is not JSON"),
        (
            {"public_test_cases": "[]", "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(Harm()))).decode()},
            "private_test_cases is .* holds a builtins.print",
        ),
        ({"private_tests": [{"inputs": 1}]}, "private_tests = .* must hold inputs and outputs"),
    ],
)  # fmt: skip
def test_mistakes_are_named(task: Any, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_code_task(task)
    assert capsys.readouterr().out == ""


async def graded(task: CodeTask, source: str, pool: SandboxPool) -> Verdict:
    return await grade(task.program(source), task.tests, pool=pool, language=task.language)


MIN_COST = "class Solution:\n    def minCost(self, nums: List[int], k: int) -> int:\n        return sum(nums[:k]) if {} else inf"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("row", "source", "statuses"),
    [
        # Names that starter codes use without importing them, in a class that the row has no reference for.
        (LIVECODEBENCH, MIN_COST.format("nums"), "passed passed wrong_answer"),
        (LIVECODEBENCH, "from __future__ import annotations\n" + MIN_COST.format("True"), "passed passed passed"),
        (LIVECODEBENCH, "from __future__ import (\n    annotations,\n)\n" + MIN_COST.format("True"), "passed passed passed"),
        (LIVECODEBENCH, "def minCost(nums, k): return deque(accumulate(nums[:k], initial=0), 1).pop()", "passed passed passed"),
        ({**LIVECODEBENCH, "metadata": "{}", "public_test_cases": cases(("5000", "9" * 5000)), "private_test_cases": "[]"}, "print(10 ** int(input()) - 1)", "passed"),
        # The data set has wrapped the value in a list, or it has not.
        ({"input_output": PAIRS}, SUM_METHOD, "passed"),
        ({"input_output": PAIRS}, "def add(a, b): return [a + b]", "passed"),
        ({"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [[{"1": 2}]]}}, "def f(x): return {x: 2}", "passed"),
        ({"tests": {"inputs": ["1\n2"], "outputs": ["[3]"], "fn_name": "add"}}, SUM, "wrong_answer"),
        ({"tests": {"inputs": ["1\n2"], "outputs": ["[3]"], "fn_name": "add"}}, "def add(a, b): return (a + b,)", "passed"),
        # Numbers by value, and a checker that prints 1.
        ({"input_output": {"inputs": ["", ""], "outputs": ["2.5 -0\n", "1\n\n"]}}, "print('2.50  0 \\n')", "passed wrong_answer"),
        (CODEFORCES, "print(int(input()) * 2)", "passed passed"),
        (CODEFORCES, "print(input())", "wrong_answer wrong_answer"),
    ],
)  # fmt: skip
async def test_programs_for_rows_are_graded_as_their_data_sets_mean_it(
    row: Row, source: str, statuses: str, pool: SandboxPool
) -> None:
    verdict = await graded(load_code_task(row), source, pool)
    assert " ".join(result.status for result in verdict.results) == statuses, verdict.results


def rows_of(problem: Row) -> list[Row]:
    """One problem on standard input in the form of each data set."""
    given, wanted = ([*side] for side in zip(*problem["tests"], strict=True))
    pairs = [{"input": one, "output": other, "testtype": "stdin"} for one, other in problem["tests"]]
    named = {"name": problem["name"], "solution": problem["python"]}
    own = [{"kind": "io", "stdin": one, "stdout": other} for one, other in problem["tests"]]
    return [
        {**named, "tests": own},
        {**named, "solution": None, "input_output": json.dumps({"inputs": given, "outputs": wanted}), "solutions": json.dumps([problem["python"]])},
        {**named, "public_test_cases": json.dumps(pairs[:1]), "private_test_cases": packed(pairs[1:]), "metadata": "{}"},
        {**named, "public_tests": {"input": given[:1], "output": wanted[:1]}, "private_tests": {"input": given[1:], "output": wanted[1:]}},
        {**named, "examples": pairs[:1], "official_tests": pairs, "time_limit": 5.0, "memory_limit": 256.0},
    ]  # fmt: skip


async def assert_references_pass(rows: list[Row], pool: SandboxPool) -> None:
    failed: list[Any] = []

    async def one(row: Row) -> None:
        task = load_code_task(row)
        assert task.reference is not None
        verdict = await graded(task, task.reference, pool)
        if not verdict.passed or len(task.tests) < 5:
            failed.append((row, verdict.results))

    async with anyio.create_task_group() as group:
        for row in rows:
            group.start_soon(one, row)
    assert failed == []


@pytest.mark.anyio
async def test_a_problem_passes_in_the_form_of_each_data_set(pool: SandboxPool) -> None:
    await assert_references_pass(rows_of(stdin_problems()[0]), pool)


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.timeout(300)
async def test_200_problems_in_the_forms_of_data_sets_pass(pool: SandboxPool) -> None:
    rows = [row for problem in stdin_problems() for row in rows_of(problem)]
    assert len(rows) >= 200
    await assert_references_pass(rows, pool)
