"""A reply's answer and a task's: a hundred pairs, how long a comparison may take, and answers that are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import TaskFileError
from agentrl.tasks.task_type import task_type_of
from agentrl.tasks.tasks import list_tasks
from agentrl.workflows import answers, chat, formulas, python_tool
from agentrl.workflows.answers import contains, final_answer, is_right

Row = tuple[Any, list[str], list[str]]
"""An answer, replies that are right, and replies that are wrong."""
SIMPLE: list[Row] = [
    # Where the answer stands.
    (42, [r"so \boxed{42}", "**42**", "Answer:42", "答案是42。", "It is 42 (see section A1).", "42<|im_end|>"], []),
    ("2", [r"\boxed{1} no, \boxed{2}"], [r"\boxed{2} no, \boxed{1}"]),
    ("42", [r"\fbox{42}", "#### 42\nDone.", r"\boxed{\approx 42}"], [r"\boxed{42", "x = ±42"]),
    (42, ["#### 42 ####", "#### 42 ####\nDone.", "Answer: [42]"], ["#### 41 ####"]),
    (7, ["#### Final Answer\n7", "#### Final Answer:\n**7**", "#### **2. Compute**\nso x = 7"], []),
    (7, ["#### Step 3\nIt is 7", "##### A sum of 5\nIt is 7", "#### Sum: 7 apples", "#### 7\n#### 2. Check\nok"], []),
    (7, ["#### 7 apples\nin 3 steps."], []),
    (["17 + 25 = 42\n#### 42", r"We add. \boxed{7}"], ["#### 42", r"\boxed{7}"], ["#### 17"]),
    ([1234.5, "1234"], ["There are 3 cats and 1,234.5 dogs.", r"\boxed{\$1,234.00}"], []),
    (3, [], ["There are 3 cats and 42 dogs", "none"]),
    (5, [r"\(x = 5\)", "It takes 5kg.", r"\boxed{x = 5}"], ["x = -5", "−5", "1e5"]),
    (
        5,
        [r"\boxed5", r"$\boxed 5$.", "<think>\\boxed{4}</think>\nIt is 5."],
        [r"\boxed57", "<think>5</think>\\boxed{4}"],
    ),
    (4, [r"<think>5</think>\boxed{4}"], ["<think>\\boxed{4}</think>\nIt is 5.", r"\boxed{4} no, \boxed5"]),
    (42, [], [r"\boxed{42 or 43}", r"\boxed{\text{not }42}"]),
    # Numbers that are part of something else.
    (2, [], ["The answer is 1/2", r"It is \frac{1}{2}", r"It is \sqrt{2}", "It is sqrt(2)"]),
    (2, [], [r"\boxed{2x}", r"\boxed{2\pi}"]),
    ("1/2", ["The answer is 1/2", r"\boxed{\tfrac12}"], []),
    (0.5, [r"It is \frac{1}{2}", r"\boxed{50\%}", r"\boxed{\dfrac{1}{2}}"], []),
    ([10, 30, -10], [], ["2^10", "at 12:30", "pages 5-10"]),
    (3, [], [r"It is 5 \times 10^3", "3 x^2"]),
    (100000, ["1e5"], []),
    # Signs, separators, currencies, units.
    (5, [r"\boxed{\$5}", r"\boxed{5 \text{ cm}}", r"\boxed{€5}"], [r"\boxed{50\%}", r"\boxed{5 \text{ million}}"]),
    (5, [], [r"\boxed{5 or 7}", r"\boxed{5 or six}", r"\boxed{5!}"]),
    ("−5", ["x = -5", "−5", r"\boxed{-5}"], []),
    ([12, 1, 2, 35, 3, 5], [], [r"\boxed{1,2}", r"\boxed{3,5}"]),
    (3.5, [r"\boxed{3\frac{1}{2}}"], [r"\boxed{3,5}"]),
    (1000, [r"\boxed{1{,}000}", "It is 1 000.", "It is 1\u00a0000", "It is 1\u202f000"], ["1 0000", "in 2020 000"]),
    ("12:30", [r"\boxed{12{:}30}", "It is 12:30."], [r"\boxed{1230}"]),
    (1000000, [r"\boxed{1 000 000}", "It is 1 000 000", r"\boxed{1\,000\,000}"], []),
    (50, [r"\boxed{50\%}", r"\boxed{\text{50\%}}"], []),
    ("50%", ["50 percent"], []),
    ("90 degrees", [r"\boxed{90^\circ}", r"\boxed{90^{\circ}}"], []),
    (7, [r"\boxed{7~\text{cm}}", r"\boxed{7~}", "It is $7/hour.", "7/day", r"\boxed{\$7/\text{hour}}"], ["1/7", "7/x"]),
    (5, [r"\boxed{₹5}"], [r"\boxed{₹50}"]),
    ([1, "~"], [r"\boxed{~}"], [r"\boxed{1/s}", r"\boxed{1/pi}"]),
    ("5 s", [r"\boxed{5}", "5 s"], [r"\boxed{5 kg}", r"\boxed{5 ms}"]),
    ("3 inches", [r"\boxed{3 inch}"], []),
    ("5 cm", [r"\boxed{5\,\mathrm{cm}}"], [r"\boxed{5 \text{ km}}", r"\boxed{0.05 m}"]),
    ("5 apple", [r"\boxed{5 apples}", r"\boxed{5}"], [r"\boxed{5 min}"]),
    # Values.
    (r"\frac{1}{2}", [r"\boxed{\frac{1}{2}}", r"\boxed{\dfrac{1}{2}}"], []),
    (-0.75, [r"\boxed{-\frac{3}{4}}"], []),
    ([15.5, 1, 6], [], [r"\boxed{3\frac{1}{2}}", r"\boxed{1/0}", r"\boxed{x = 5, y = 6}"]),
    (42, [r"\boxed{42.0}", r"\boxed{\text{42}}"], []),
    ("0.50", [r"\boxed{.5}"], []),
    ("1/3", [r"\boxed{0.3333333}"], []),
    (314.15927, [r"\boxed{314.159}"], [r"\boxed{314.15}"]),
    (["0.3333", 1000001, 1e-9], [], [r"\boxed{0.33}", r"\boxed{1000000}", r"\boxed{0}"]),
    # Words.
    ("B", [r"\boxed{(B)}", r"\boxed{\textbf{(B)}}", r"\boxed{B. Paris}", r"\boxed{(B) Paris}"], [r"\boxed{(A) B}"]),
    ("D", [r"\boxed{\textbf{(D)}\,\frac12}", r"\boxed{(D)~42}", r"\boxed{(D)\ 42}"], [r"\boxed{(D)+1}"]),
    ("A", [r"\boxed{A)}", "#### A"], [r"\boxed{B) A}", r"\boxed{A or B}", r"\boxed{A) or B)}"]),
    (["C", "P"], [], [r"\boxed{B}", r"\boxed{B. Paris}"]),
    ("paris", [r"\boxed{\text{Paris}}"], []),
    (["Paris", "Lyon"], [r"\boxed{Lyon}"], [r"\boxed{Nice}"]),
]
"""Pairs that need no library."""
FORMULAS: list[Row] = [
    (1024, [r"\boxed{2^{10}}", "It is 2^10"], []),
    (r"2\sqrt{2}", [r"\boxed{\sqrt{8}}"], []),
    (r"\frac{3}{2\sqrt{3}}", [r"\boxed{\frac{\sqrt{3}}{2}}"], []),
    ([r"\frac{\sqrt{3}}{3}", "1-x"], [], [r"\boxed{\frac{\sqrt{3}}{2}}", r"\boxed{x-1}"]),
    ("x+1", [r"\boxed{1+x}"], []),
    ("x^2+2x+1", [r"\boxed{(x+1)^2}"], []),
    (r"\{1,2\}", [r"\boxed{\{2,1\}}"], []),
    ("(1,2)", [r"\boxed{(1, 2)}"], [r"\boxed{(2, 1)}"]),
    (["[0,1]", 3, r"\frac{x}{y}"], [], [r"\boxed{[0,1)}", r"\boxed{\pi}", r"\boxed{\frac{}{}}"]),
    (r"2\cdot 3\pi", [r"\boxed{6\pi}"], []),
    ("52_8", [r"\boxed{52_{8}}"], [r"\boxed{52_9}"]),
    (1500, [r"\boxed{1.5\times10^{3}}"], []),
]
"""Pairs that are compared by math-verify."""
CONTAINED: list[Row] = [
    ("paris", ["It is Paris, France.", "**Paris**", "_Paris_"], ["Parisian", "Paris2"]),
    (["Paris", "Lyon"], ["Lyon."], ["Nice"]),
    (5, ["in 5 days.", "5kg", "It is $5", "答案是5。"], ["in 15 days", "in 5.5 days", "-5", "10-5", "1/5", "12:5"]),
    (5, [], ["1,5", "10.5", ".5", "x5", "2^5", "5^2", "5²"]),
    ([500, ".5"], ["It is .5"], ["1,500 of them", "10.5"]),
    ("-5", ["The answer is −5.", "x=-5"], ["10-5", "(x)-5", "-5.5"]),
    (["no", "yes"], ["No!"], ["I do not know.", "Yesterday."]),
    ("巴黎", ["答案是巴黎。"], []),
    (["да", "ναι"], ["Да.", "ναι"], ["дача", "вода", "ναιάς"]),
    ("New York", ["It is new\nyork."], ["New Yorker"]),
    ("C", ["It is C.", "(C)", "C is right", "**C**"], ["C++", "C#", "a c", "Cat", "C3"]),
    (["$", "5"], ["It costs $5"], ["It costs $"]),
    ("A", ["(A) Paris", "A. Paris", "Option A is right"], ["I think it is a dog", "Ah"]),
]
"""Answers, with replies that contain them and replies that do not."""


def pairs(rows: list[Row]) -> list[tuple[str, Any, bool]]:
    """Return each reply of a table with its answer, and whether it is right."""
    return [
        (reply, answer, good)
        for answer, *both in rows
        for good, replies in zip((True, False), both, strict=True)
        for reply in replies
    ]


def right(reply: str, answer: Any) -> bool:
    return is_right(final_answer(reply), answer)


@pytest.mark.parametrize(("reply", "answer", "expected"), pairs(SIMPLE + FORMULAS))
def test_an_answer_is_right_or_not(reply: str, answer: Any, expected: bool) -> None:
    assert right(reply, answer) is expected


@pytest.mark.parametrize(("reply", "answer", "expected"), pairs(SIMPLE))
def test_the_simple_ones_need_no_library(
    reply: str, answer: Any, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "can_compare_formulas", lambda: False)
    assert right(reply, answer) is expected


@pytest.mark.parametrize(("reply", "answer", "held"), pairs(CONTAINED))
def test_a_reply_contains_an_answer_or_not(reply: str, answer: Any, held: bool) -> None:
    assert contains(reply, answer) is held


LONG = ["a" * 10**5, "1 " * 10**5, "^" + " " * 10**5, "\\text{" * 10**4, "(" * 10**5 + "1", f"####{' ' * 10**5}a" * 2]


@pytest.mark.parametrize("text", LONG)
def test_the_answer_in_a_long_reply_is_found_at_once(text: str) -> None:
    began = time.process_time()
    final_answer(text)
    assert time.process_time() - began < 5


# What may take for ever -----------------------------------------------------------------------------------------------

ENDLESS = "9^{9^{9^{9}}} + x"


def test_a_formula_that_takes_too_long_is_wrong_and_the_next_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, where math-verify's own limit of time fails."""
    formulas._end_processes()
    monkeypatch.setattr(formulas, "CPU_TIME_S", 1.0)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(right, r"\boxed{1+x}", "x+1").result()
        process = formulas._idle[-1]
        assert not thread.submit(right, rf"\boxed{{{ENDLESS}}}", "x^2").result()
        assert process.returncode == -signal.SIGPROF
        assert thread.submit(right, r"\boxed{1+x}", "x+1").result()
    formulas._end_processes()


def test_a_process_is_used_again_and_a_dead_one_is_replaced() -> None:
    assert right(r"\boxed{1+x}", "x+1")
    process = formulas._idle[-1]
    assert right(r"\boxed{y+x}", "x+y")
    assert formulas._idle[-1] is process
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert right(r"\boxed{1+x}", "x+1")
    assert formulas._idle[-1] is not process


def test_processes_end_with_the_one_that_started_them() -> None:
    code = (
        "from agentrl.workflows import formulas\n"
        "print(formulas.formulas_agree('1+x', 'x+1'), formulas._idle[0].pid, flush=True)\n"
        "import os; os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    verdict, pid = done.stdout.split()
    assert verdict == "True"
    # Its output is a pipe of its parent's, not ours: that it has ended is seen from its entry in /proc alone.
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)


# Answers that are refused ---------------------------------------------------------------------------------------------


def read(row: dict[str, Any], folder: Path, run: Any = chat.run) -> int:
    """Return how many tasks there are in a file with a row."""
    path = folder / "tasks.jsonl"
    path.write_text(json.dumps(row))
    return len(list_tasks(str(path), task_type=task_type_of(run)))


@pytest.mark.parametrize("scorer", ["exact", "contains", "number", "boxed"])
@pytest.mark.parametrize("answer", ["", " ", {"text": "42"}, [], ["42", ""], [["42"]], [None]])
def test_an_answer_that_every_reply_or_none_has_is_refused(scorer: str, answer: Any, tmp_path: Path) -> None:
    with pytest.raises(
        TaskFileError, match=r"line 1 .*answer = .* must be a text that is not blank, a number, or a list"
    ):
        read({"prompt": "?", "answer": answer, "scorer": scorer}, tmp_path)


def test_a_scorer_of_the_users_takes_any_answer(tmp_path: Path) -> None:
    row = {"prompt": "?", "answer": {"text": ""}, "scorer": "tests.workflows.test_ready:length"}
    assert read(row, tmp_path) == 1


@pytest.mark.parametrize("answer", [r"\sqrt{2}", "x^2", "x + 1", r"so \boxed{2\pi}"])
def test_a_formula_says_which_extra_it_needs(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ({"prompt": "?", "answer": answer, "scorer": "boxed"}, chat.run),
        ({"question": "?", "answer": answer}, python_tool.run),
    ]
    for row, run in rows:
        read(row, tmp_path, run)
    monkeypatch.setattr(answers, "can_compare_formulas", lambda: False)
    for row, run in rows:
        with pytest.raises(
            TaskFileError, match=r"line 1 .* is a formula, which needs math-verify: pip install .*\[math\]"
        ):
            read(row, tmp_path, run)
