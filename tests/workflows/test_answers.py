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
from agentrl.workflows.answers import contains, final_answer, is_right, last_number

SIMPLE: list[tuple[str, Any, bool]] = [
    # Where the answer stands.
    (r"so \boxed{42}", 42, True),
    (r"\boxed{1} no, \boxed{2}", "2", True),
    (r"\boxed{1} no, \boxed{2}", "1", False),
    (r"\boxed{42", "42", False),
    (r"\fbox{42}", "42", True),
    ("#### 42\nDone.", "42", True),
    (r"\boxed{B. Paris}", "B", True),
    (r"\boxed{B. Paris}", "P", False),
    (r"\boxed{\approx 42}", "42", True),
    ("x = ±42", "42", False),
    ("#### 42", "17 + 25 = 42\n#### 42", True),
    (r"\boxed{7}", r"We add. \boxed{7}", True),
    ("There are 3 cats and 1,234.5 dogs.", 1234.5, True),
    ("There are 3 cats and 42 dogs", 3, False),
    ("none", "3", False),
    ("**42**", 42, True),
    ("Answer:42", 42, True),
    ("x = -5", -5, True),
    (r"\(x = 5\)", 5, True),
    ("答案是42。", 42, True),
    ("It is 42 (see section A1).", 42, True),
    ("It takes 5kg.", 5, True),
    ("42<|im_end|>", 42, True),
    # Numbers that are part of something else.
    ("The answer is 1/2", 2, False),
    ("The answer is 1/2", "1/2", True),
    ("The answer is 1 / 2.", 0.5, True),
    ("2^10", 10, False),
    ("2 ^ 10", 10, False),
    (r"It is \frac{1}{2}", 2, False),
    (r"It is \frac{1}{2}", 0.5, True),
    (r"It is \sqrt{2}", 2, False),
    ("It is sqrt(2)", 2, False),
    (r"It is 5 \times 10^3", 3, False),
    ("at 12:30", 30, False),
    ("1e5", 5, False),
    ("1e5", 100000, True),
    ("10 - 3", 3, False),
    ("pages 5-10", -10, False),
    # Signs, separators, currencies, units.
    ("−5", 5, False),
    ("−5", -5, True),
    (r"\boxed{-5}", "−5", True),
    (r"\boxed{1,2}", 12, False),
    (r"\boxed{1,2}", 2, False),
    (r"\boxed{1{,}000}", 1000, True),
    (r"\boxed{1\,000}", "1,000", True),
    (r"\boxed{1 000 000}", 1000000, True),
    (r"\boxed{\$5}", 5, True),
    (r"\boxed{\$1,234.00}", "1234", True),
    (r"\boxed{€5}", "5", True),
    (r"\boxed{50\%}", 50, True),
    (r"\boxed{50\%}", 0.5, True),
    (r"\boxed{50\%}", 5, False),
    ("50 percent", "50%", True),
    (r"\boxed{90^\circ}", 90, True),
    (r"\boxed{90^{\circ}}", "90 degrees", True),
    (r"\boxed{5 \text{ cm}}", 5, True),
    (r"\boxed{5\,\mathrm{cm}}", "5 cm", True),
    (r"\boxed{5 \text{ km}}", "5 cm", False),
    (r"\boxed{5 \text{ million}}", 5, False),
    ("about 5 million", 5000000, True),
    (r"\boxed{5 or 7}", 5, False),
    (r"\boxed{5 or six}", 5, False),
    (r"\boxed{2x}", 2, False),
    (r"\boxed{2\pi}", 2, False),
    (r"\boxed{5!}", 5, False),
    # Values.
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", True),
    (r"\boxed{\dfrac{1}{2}}", r"\frac{1}{2}", True),
    (r"\boxed{\dfrac{1}{2}}", 0.5, True),
    (r"\boxed{\tfrac12}", "1/2", True),
    (r"\boxed{-\frac{3}{4}}", -0.75, True),
    (r"\boxed{3\frac{1}{2}}", 3.5, True),
    (r"\boxed{3\frac{1}{2}}", 15.5, False),
    (r"\boxed{1/0}", 1, False),
    (r"\boxed{42.0}", 42, True),
    (r"\boxed{.5}", "0.50", True),
    (r"\boxed{0.3333333}", "1/3", True),
    (r"\boxed{314.159}", 314.15927, True),
    (r"\boxed{314.15}", 314.15927, False),
    (r"\boxed{5 inches}", "5 inch", True),
    (r"\boxed{5 glass}", "5 glasses", True),
    (r"\boxed{0.33}", "0.3333", False),
    (r"\boxed{1000000}", 1000001, False),
    (r"\boxed{0}", 1e-9, False),
    (r"\boxed{x = 5}", 5, True),
    (r"\boxed{x = 5, y = 6}", 6, False),
    # Words.
    (r"\boxed{\text{42}}", 42, True),
    (r"\boxed{(B)}", "B", True),
    (r"\boxed{\textbf{(B)}}", "b", True),
    (r"\boxed{B}", "C", False),
    (r"\boxed{\text{Paris}}", "paris", True),
    (r"\boxed{Lyon}", ["Paris", "Lyon"], True),
    (r"\boxed{Nice}", ["Paris", "Lyon"], False),
]
"""Pairs that need no library."""
FORMULAS: list[tuple[str, Any, bool]] = [
    (r"\boxed{2^{10}}", 1024, True),
    ("It is 2^10", 1024, True),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", True),
    (r"\boxed{\frac{\sqrt{3}}{2}}", r"\frac{3}{2\sqrt{3}}", True),
    (r"\boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{3}", False),
    (r"\boxed{1+x}", "x+1", True),
    (r"\boxed{(x+1)^2}", "x^2+2x+1", True),
    (r"\boxed{x-1}", "1-x", False),
    (r"\boxed{\{2,1\}}", r"\{1,2\}", True),
    (r"\boxed{(1, 2)}", "(1,2)", True),
    (r"\boxed{(2, 1)}", "(1,2)", False),
    (r"\boxed{[0,1)}", "[0,1]", False),
    (r"\boxed{6\pi}", r"2\cdot 3\pi", True),
    (r"\boxed{1.5\times10^{3}}", 1500, True),
    (r"\boxed{\pi}", 3, False),
    (r"\boxed{\frac{}{}}", r"\frac{x}{y}", False),
]
"""Pairs that are compared by math-verify."""


def right(reply: str, answer: Any) -> bool:
    return is_right(final_answer(reply), answer)


def test_the_table_is_of_a_hundred_pairs_at_least() -> None:
    assert len(SIMPLE) + len(FORMULAS) >= 100


@pytest.mark.parametrize(("reply", "answer", "expected"), SIMPLE + FORMULAS)
def test_an_answer_is_right_or_not(reply: str, answer: Any, expected: bool) -> None:
    assert right(reply, answer) is expected


@pytest.mark.parametrize(("reply", "answer", "expected"), SIMPLE)
def test_the_simple_ones_need_no_library(
    reply: str, answer: Any, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "can_compare_formulas", lambda: False)
    assert right(reply, answer) is expected


@pytest.mark.parametrize(
    ("reply", "answer", "held"),
    [
        ("It is Paris, France.", "paris", True),
        ("Lyon.", ["Paris", "Lyon"], True),
        ("in 15 days", 5, False),
        ("in 5.5 days", 5, False),
        ("in 5 days.", 5, True),
        ("1,500 of them", 500, False),
        ("The answer is -5.", 5, False),
        ("The answer is −5.", "-5", True),
        ("It is 1/5.", 5, False),
        ("I do not know.", "no", False),
        ("Yesterday.", "yes", False),
        ("答案是巴黎。", "巴黎", True),
    ],
)
def test_a_reply_contains_an_answer_or_not(reply: str, answer: Any, held: bool) -> None:
    assert contains(reply, answer) is held


@pytest.mark.parametrize("text", ["a" * 10**5, "1 " * 10**5, "^" + " " * 10**5, "\\text{" * 10**4, "(" * 10**5 + "1"])
def test_the_last_number_of_a_long_reply_is_found_at_once(text: str) -> None:
    began = time.process_time()
    last_number(text)
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
