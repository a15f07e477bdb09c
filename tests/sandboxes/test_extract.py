"""The program in a reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.sandboxes import code_blocks, extract_code

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
        ("  ```python\n  x\n  ```", "  x"),
        ("", None),
    ],
)
def test_replies(reply: str, code: str | None) -> None:
    assert extract_code(reply) == code


@given(st.text(st.sampled_from("`~\n pyx "), max_size=60))
def test_no_reply_is_too_strange(reply: str) -> None:
    for block in code_blocks(reply):
        assert block.code in reply
    extract_code(reply, which="best")
