"""What a Dockerfile says before it is built."""

from __future__ import annotations

import pytest

from agentrl.rollout.dockerfile import copied, instructions, workdir_of


@pytest.mark.parametrize(
    ("lines", "workdir"),
    [
        ("FROM a", None),
        ("FROM a\nWORKDIR /app", "/app"),
        ("from a\nworkdir /app\nworkdir sub/./x", "/app/sub/x"),
        ("FROM a\nWORKDIR sub", None),
        ("FROM a\nWORKDIR /app\nFROM b", None),
        ('FROM a\nWORKDIR "/with space/"', "/with space"),
        ("FROM a\nWORKDIR $HOME/x", None),
        ("FROM a\nWORKDIR $HOME\nWORKDIR x", None),
        ("FROM a\nWORKDIR $HOME\nWORKDIR /x", "/x"),
        ("FROM a\n# WORKDIR /tmp\nRUN echo \\\n# no\n  WORKDIR /tmp\nWORKDIR \\\n /app", "/app"),
        ("FROM a\nWORKDIR /app\nRUN cat <<'END' > x\nWORKDIR /tmp\nEND\n", "/app"),
        ("FROM a\nWORKDIR\t/tmp", "/tmp"),
        ("FROM a\nRUN echo $((1<<3))\nWORKDIR /app", "/app"),
        ('FROM a\nRUN bash <<< "x"\nWORKDIR /app', "/app"),
        ("FROM a\nRUN echo 'a <<END' \"b <<END\"\nWORKDIR /app", "/app"),
        ("FROM a\nCOPY <<'a.txt' <<b.txt /x/\nWORKDIR /y\na.txt\nWORKDIR /z\nb.txt\nWORKDIR /app", "/app"),
        ('FROM a\nRUN <<-"E O" 3<<F\nWORKDIR /y\n\tE O\nWORKDIR /z\nF\nWORKDIR /app', "/app"),
        ("", None),
        ("\\", None),
        ("FROM a\nRUN cat <<END\nWORKDIR /tmp", None),
    ],
)
def test_the_folder_that_programs_start_in(lines: str, workdir: str | None) -> None:
    assert workdir_of(lines) == workdir


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("COPY . /app", "all"),
        ("COPY ./ .", "all"),
        ("ADD / /app", "all"),
        ("COPY --chown=1:1 * /app/", "all"),
        ("COPY t* /app/", "all"),
        ('COPY [".", "/app"]', "all"),
        ("COPY tests /app/tests", "named"),
        ("COPY a.txt ./tests/data.txt /app/", "named"),
        ('ADD ["sub/../tests", "/app"]', "named"),
        ("COPY\ttests /app", "named"),
        ("COPY --chown=1:1\ttests /app", "named"),
        ("COPY ../tests /app", "named"),
        ("COPY .. /app", "all"),
        ("COPY [st]ests /app", "all"),
        ("COPY src /app", "none"),
        ("COPY --from=other\ttests /app", "none"),
        ("COPY ../src/tests /app", "none"),
        ("COPY src/tests /app", "none"),
        ("COPY --from=other . /app", "none"),
        ("ADD https://host/tests /app", "none"),
        ("COPY <<END /app/x\nCOPY . /app\nEND", "none"),
        ("RUN cp -r . /app", "none"),
        ("COPY 'half", "none"),
    ],
)
def test_what_is_copied(line: str, found: str) -> None:
    naming, sweeping = copied(f"FROM a\n{line}\n", ("tests", "solution.sh"))
    assert (bool(naming), bool(sweeping)) == (found == "named", found == "all")


def test_instructions_go_on_over_lines_and_comments() -> None:
    text = 'FROM a\n\nRUN one \\\n\n  # not this\n  two\nCMD ["x"]'
    assert [(name, words.split()) for name, words in instructions(text)] == [
        ("FROM", ["a"]),
        ("RUN", ["one", "two"]),
        ("CMD", ['["x"]']),
    ]
