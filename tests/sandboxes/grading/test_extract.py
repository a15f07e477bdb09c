"""The program in a reply."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes import CPP, extract_code
from agentrl.sandboxes.grading.extract import fenced_blocks

REPLY = """First try:
```python
def f(x):
    return x
```
In a shell:
```bash
python f.py
```
Better:
~~~Python title="f.py"
def f(x):
    s = '''
```
'''
    return x + 1
~~~
"""


def test_blocks_keep_their_tags_and_their_content() -> None:
    blocks = [*fenced_blocks(REPLY)]
    assert [tag for tag, _ in blocks] == ["python", "bash", "python"]
    assert blocks[2][1] == "def f(x):\n    s = '''\n```\n'''\n    return x + 1"
    assert extract_code(REPLY) == blocks[2][1]
    assert extract_code(REPLY, ("bash", "sh")) == "python f.py"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("no code at all", None),
        ("```\nprint(1)\n```", "print(1)"),
        ("```java\nclass A {}\n```", None),
        ("```python\nprint(1)", "print(1)"),
        ("```python\n```", ""),
        ("````python\n```\n````", "```"),
        ("```{.python}\nx\n```", "x"),
        ("```python\nx = 1\n```\n```\noutput: 1\n```", "x = 1"),
        ("inline ```code``` only", None),
        ("  ```python\n  x\n  ```", "x"),
        ("1. Here:\n\n   ```python\n   def f(x):\n       return x\n   ```", "def f(x):\n    return x"),
        (" ```python\nx = 1\n   y\n ```", "x = 1\n  y"),
        ("```python\r\nx = 1\r\n```\r\n```text\r\n1\r\n```\r\n", "x = 1"),
        ("~~~~python\n~~~\n```\n~~~~~  \n", "~~~\n```"),
        ("    ```python\nindented by four, no fence", None),
        ("```py\n``` py\n```", "``` py"),
    ],
)
def test_the_last_program_is_taken(reply: str, code: str | None) -> None:
    assert extract_code(reply) == code
    assert extract_code("```c++\nint main() {}\n```\n" + reply, CPP.names) == "int main() {}"


HOSTILE = [*("`", "~", " ", "\n", "\r", "\0", "\ud800", "```\n", "```\n~~~\n", "   \n", " ~~~`", "``` a a a\n")]


@pytest.mark.soak
@pytest.mark.parametrize("prefix", ["", "```python\n", "~" * 1600 + "\n"])
@pytest.mark.parametrize("unit", HOSTILE)
def test_the_time_grows_with_the_reply_and_no_faster(unit: str, prefix: str) -> None:
    """Five times the reply take less than 12 times as long; a quadratic search would take 25 times."""

    def cpu_s(length: int) -> float:
        reply = prefix + unit * (length // len(unit))
        times = []
        for _ in range(3):
            started = time.thread_time()
            extract_code(reply)
            times.append(time.thread_time() - started)
        return min(times)

    assert cpu_s(1_000_000) < 12 * cpu_s(200_000) + 0.02


lines = st.one_of(
    st.sampled_from(
        ["```", "```python", "~~~", "~~~py", "````", "```{.python}", "  ```py title='a.py'", "", "x = 1", "    y = '`'"]
    ),
    st.text(st.characters(categories=["L", "P", "Zs"]), max_size=12),
)


@given(st.lists(lines, max_size=20).map("\n".join))
def test_blocks_are_those_of_the_plain_definition(reply: str) -> None:
    """Line by line, as the specification of Markdown has it, without a thought for speed."""

    def content() -> str:
        lines = "\n".join(code).rstrip("\r\n").split("\n")
        spaces = [len(line) - len(line.lstrip(" \t")) for line in lines]
        return "\n".join(line[min(indentation, space) :] for line, space in zip(lines, spaces, strict=True))

    indentation = 0
    expected: list[tuple[str, str]] = []
    opening: tuple[str, str] | None = None
    code: list[str] = []
    for line in reply.split("\n"):
        match = re.fullmatch(r"([ \t]{0,3})(```+|~~~+)(.*)", line, re.DOTALL)
        fence, rest = (match[2], match[3]) if match else ("", "")
        if opening is None:
            if fence and "`" not in rest:
                tag = re.match(r"[ \t]*(\S*)", rest)
                assert tag is not None
                opening, code = (fence, tag[1].strip("{}.").lower()), []
                indentation = len(match[1]) if match else 0
        elif fence and fence[0] == opening[0][0] and len(fence) >= len(opening[0]) and not rest.strip():
            expected.append((opening[1], content()))
            opening = None
        else:
            code.append(line)
    if opening is not None:
        expected.append((opening[1], content()))
    assert [*fenced_blocks(reply)] == expected
