from pathlib import Path


def test_greeting() -> None:
    assert Path("/app/hello.txt").read_text().strip() == Path("/tests/expected.txt").read_text().strip()


def test_the_name_is_as_it_was() -> None:
    assert Path("/app/name.txt").read_text().strip() == "world"
