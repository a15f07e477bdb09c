"""A solution is applied on this machine, to files that others wrote: they run nothing here, and write nowhere else."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.workflows.repository import Repository, pack, with_patch
from tests.workflows.test_swe_rows import git

PATCH = "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"


def text_in(packed: bytes, name: str) -> str:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        found = archive.extractfile(name)
        assert found is not None
        return found.read().decode()


@pytest.mark.parametrize("below", ["", ".git/"])
def test_files_that_make_up_a_repository_run_nothing_here(tmp_path: Path, below: str) -> None:
    """A repository may hold another in its top folder, whose settings name programs that git runs on each file."""
    ran = tmp_path / "ran"
    program = f'"touch {ran}; cat"'
    files = {
        "calc.py": "x = 1\n",
        ".gitattributes": "*.py filter=it\n",
        f"{below}HEAD": "ref: refs/heads/main\n",
        f"{below}config": f'[core]\nbare = false\nworktree = .\n[filter "it"]\nclean = {program}\nsmudge = {program}\n',
        f"{below}objects/none": "",
        f"{below}refs/none": "",
    }
    assert text_in(with_patch(pack(files), PATCH), "calc.py") == "x = 2\n"
    assert not ran.exists()


def test_a_commit_is_what_it_holds_whatever_its_attributes_say(tmp_path: Path) -> None:
    files = {
        "docs/a.txt": "a\n",
        "version.py": "it = '$Format:%H %B$'\n",
        ".gitattributes": "docs export-ignore\nversion.py export-subst\n*.txt eol=crlf\n",
    }
    for name, text in files.items():
        (tmp_path / "it" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "it" / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "the message"]):
        git(tmp_path / "it", *command)
    packed = Repository(git=tmp_path / "it", commit="HEAD").packed()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert {one.name for one in archive if one.isreg()} == {*files}
    assert {name: text_in(packed, name) for name in files} == files


def test_links_of_a_repository_may_lead_anywhere_and_nothing_goes_through_them(tmp_path: Path) -> None:
    (outside := tmp_path / "outside").mkdir()
    (folder := tmp_path / "made").mkdir()
    (folder / "calc.py").write_text("x = 1\n")
    for name, target in (("there", outside), ("up", "../outside"), ("nowhere", "/no/such/file")):
        os.symlink(target, folder / name)
    start = Repository(folder=folder).packed()
    patched = with_patch(start, PATCH)
    assert text_in(patched, "calc.py") == "x = 2\n"
    with tarfile.open(fileobj=io.BytesIO(patched)) as archive:
        assert {one.name for one in archive if one.issym()} == {"there", "up", "nowhere"}
    for name in ("there", "up"):
        with pytest.raises(ConfigError, match="does not apply"):
            with_patch(start, f"--- /dev/null\n+++ b/{name}/new.py\n@@ -0,0 +1 @@\n+x = 2\n")
    assert not [*outside.iterdir()]
