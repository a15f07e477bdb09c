"""Programs with test code for them, as the files of cases hold them."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent

from agentrl.sandboxes import AssertTest, TestFile


def unindented(cases: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Each case's program and test code, without the indentation that they have in the file of cases."""
    return {name: (dedent(source).strip(), dedent(code).strip()) for name, (source, code) in cases.items()}


def as_test(code: str) -> AssertTest | TestFile:
    """Test code as the kind of test that it looks like."""
    if "def test" not in code:
        return AssertTest(code=code)
    return TestFile(code=code, framework="unittest" if "import unittest" in code else "pytest")
