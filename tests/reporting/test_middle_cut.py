"""Long text keeps its ends."""

from __future__ import annotations

import pytest

from agentrl.reporting.middle_cut import cut_middle


@pytest.mark.parametrize(
    ("text", "max_chars", "cut"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc\n[1 characters left out]\nefg"),
        ("abcdefg", 5, "ab\n[3 characters left out]\nfg"),
        ("abc", 1, "\n[3 characters left out]\n"),
        ("", 0, ""),
    ],
)
def test_a_text_loses_its_middle_where_it_is_too_long(text: str, max_chars: int, cut: str) -> None:
    assert cut_middle(text, max_chars) == cut


def test_what_is_left_out_is_counted() -> None:
    assert "[1,999,980 characters left out]" in cut_middle("x" * 2_000_000, 20)
