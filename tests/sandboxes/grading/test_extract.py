"""The program in a reply."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes import code_blocks, extract_code
from agentrl.sandboxes.grading.extract import MAX_PARSED_CHARACTERS

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
And a use:
```py
f(1)
```
"""


def test_blocks_keep_their_tags_and_their_content() -> None:
    blocks = code_blocks(REPLY)
    assert [block.tag for block in blocks] == ["python", "bash", "python", "py"]
    assert blocks[2].code == "def f(x):\n    s = '''\n```\n'''\n    return x + 1"
    assert all(block.closed for block in blocks)


def test_first_last_and_best() -> None:
    assert extract_code(REPLY) == "f(1)"
    assert extract_code(REPLY, which="first") == "def f(x):\n    return x"
    assert extract_code(REPLY, which="best") == code_blocks(REPLY)[2].code
    assert (
        extract_code(
            REPLY + "```python\ndef g(: long and broken, longer than all the others, but broken\n```",
            which="best",
            defines="f",
        )
        == code_blocks(REPLY)[2].code
    )
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
        ("- Here:\n\n\t```python\n\tdef f(x):\n\t\treturn x\n\t```", "def f(x):\n\treturn x"),
        (" ```python\nx = 1\n   y\n ```", "x = 1\n  y"),
        ("", None),
        ("```python\r\nx = 1\r\n```\r\n```text\r\n1\r\n```\r\n", "x = 1"),
        ("~~~~python\n~~~\n```\n~~~~~  \n", "~~~\n```"),
        ("    ```python\nindented by four, no fence", None),
        ("```py\n``` py\n```", "``` py"),
    ],
)
def test_replies(reply: str, code: str | None) -> None:
    assert extract_code(reply) == code


@given(st.text(st.sampled_from("`~\n pyx "), max_size=60))
def test_no_reply_is_too_strange(reply: str) -> None:
    for block in code_blocks(reply):
        assert block.code in reply
    extract_code(reply, which="best")


HOSTILE = {
    "backticks": "`",
    "tildes": "~",
    "spaces": " ",
    "line ends": "\n",
    "carriage returns": "\r",
    "NUL": "\0",
    "half a surrogate pair": "\ud800",
    "empty blocks": "```\n",
    "fences of two kinds": "```\n~~~\n",
    "lines of spaces": "   \n",
    "a fence that could be one": " ~~~`",
    "a fence and words": "``` a a a\n",
    "brackets": "(",
    "empty lists": "[]\n",
}


@pytest.mark.soak
@pytest.mark.parametrize("prefix", ["", "```python\n", "~" * 1600 + "\n"])
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_the_time_grows_with_the_reply_and_no_faster(unit: str, prefix: str) -> None:
    """Five times the reply take less than 12 times as long; a quadratic search would take 25 times."""

    def cpu_s(length: int) -> float:
        reply = prefix + unit * (length // len(unit))
        times = []
        for _ in range(3):
            started = time.thread_time()
            extract_code(reply, which="best")
            times.append(time.thread_time() - started)
        return min(times)

    small, large = cpu_s(200_000), cpu_s(1_000_000)
    assert large < 12 * small + 0.02
    assert large < 10  # a megabyte: 0.4 s at most on the slow machine that this was written on


@pytest.mark.parametrize(
    "unit", ["(", "[]\n", "-", "not ", "x=", "a.", "lambda:", "f'{", "{1:", "\0", "\ud800", '"', "if x:\n"]
)
def test_the_best_block_is_found_among_what_no_parser_likes(unit: str) -> None:
    for length in (1000, MAX_PARSED_CHARACTERS - 200, 10 * MAX_PARSED_CHARACTERS):
        hostile = unit * (length // len(unit))
        reply = f"```python\n{hostile}\n```\n```python\ndef f(): pass\n```"
        assert extract_code(reply, which="best", defines="f") == "def f(): pass"
        assert extract_code(f"```python\n{hostile}\n```", which="best") == hostile.rstrip("\n")


def test_a_program_too_long_to_parse_is_the_best_only_when_none_is_valid() -> None:
    long = "x = 1\n" * MAX_PARSED_CHARACTERS + "x = 2"
    assert extract_code(f"```\n{long}\n```\n```\ndef (\n```", which="best") == long
    assert extract_code(f"```\nx = 3\n```\n```\n{long}\n```", which="best") == long  # the budget starts at the end
    assert extract_code(f"```\n{long}\n```\n```\nx = 3\n```", which="best") == "x = 3"


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
    expected: list[tuple[str, str, bool]] = []
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
        elif fence and fence[0] == opening[0][0] and len(fence) >= len(opening[0]) and not rest.strip(" \t\r"):
            expected.append((opening[1], content(), True))
            opening = None
        else:
            code.append(line)
    if opening is not None:
        expected.append((opening[1], content(), False))
    assert [(block.tag, block.code, block.closed) for block in code_blocks(reply)] == expected


@given(st.text(st.sampled_from("`~ \t\n\r\0\ud800()ab"), max_size=200))
def test_hostile_text_gives_blocks_or_none(reply: str) -> None:
    for which in ("first", "last", "best"):
        code = extract_code(reply, which=which)  # type: ignore[arg-type]
        assert code is None or all(line in reply for line in code.split("\n"))
