"""A repository that an agent works on, where it is not in the image already: a folder, files or a commit, as a tar archive."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agentrl.errors import ConfigError, one_line
from agentrl.machine.git import run_git


def relative_path(path: str) -> str:
    """Return a path that stays below its folder.

    Raises:
        ValueError: It does not.
    """
    parts = path.split("/")
    if {"", ".", ".."} & {*parts} or "\0" in path:
        raise ValueError("a path must be relative, below the repository, and without '.' and '..'")
    return path


RelativePath = Annotated[str, AfterValidator(relative_path)]
Files = dict[RelativePath, str]
"""Texts by path."""


class Repository(BaseModel):
    """Where the files come from; one of the three."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path | None = None
    """A folder of this machine, without its `.git`."""
    files: Files | None = None
    git: Path | None = None
    """A git repository of this machine. Its history stays outside: it may have the solution."""
    commit: str = Field(default="HEAD", pattern=r"^[A-Za-z0-9][\w./^~-]*$")

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: object) -> object:
        return {"folder": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _one_source(self) -> Repository:
        named = [name for name in ("folder", "files", "git") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"a repository has one of 'folder', 'files' and 'git'; this has {named or 'none'}")
        return self

    def packed(self) -> bytes:
        """Return the files as a tar archive.

        Raises:
            ConfigError: They cannot be read.
        """
        if self.files is not None:
            return pack({path: text.encode() for path, text in self.files.items()})
        if self.git is not None:
            return _archive(self.git, self.commit)
        assert self.folder is not None
        if not self.folder.is_dir():
            raise ConfigError(_no_folder(self.folder))
        return pack_folder(self.folder)


def missing_repositories(repositories: Iterable[Repository]) -> list[str]:
    """Return what of some repositories is not on this machine, each with its remedy: folders, git, commits."""
    folders: dict[Path, None] = {}
    commits: dict[Path, list[str]] = {}
    for one in repositories:
        if one.folder is not None:
            folders[one.folder] = None
        if one.git is not None:
            commits.setdefault(one.git, []).append(one.commit)
    missing = [_no_folder(folder) for folder in folders if not folder.is_dir()]
    for repository, named in commits.items():
        asked = "".join(f"{commit}^{{commit}}\n" for commit in named)
        try:
            found = run_git(repository, "cat-file", "--batch-check", stdin=asked).decode()
        except OSError as error:
            missing.append(
                f"repository.git = {str(repository)!r}: {one_line(error)}; clone it there, or correct the path"
            )
            continue
        missing += [
            f"repository.git = {str(repository)!r} has no commit {commit!r}; fetch it there, or correct 'commit'"
            for commit, line in zip(named, found.splitlines(), strict=True)
            if line.split()[1:2] != ["commit"]
        ]
    return missing


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return files as a tar archive. Scripts that begin with #! can be run."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as packed:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            packed.addfile(info, io.BytesIO(data))
    return result.getvalue()


def pack_folder(folder: Path, name: str = ".") -> bytes:
    """Return the files of a folder as a tar archive: everybody may read them, they belong to root, and `.git` is left out."""

    def shown(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
        one.uid = one.gid = 0
        one.uname = one.gname = ""
        one.mode |= 0o755 if one.isdir() or one.name.endswith(".sh") else 0o644
        return None if one.name.removeprefix(f"{name}/") == ".git" else one

    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as packed:
        packed.add(folder, arcname=name, filter=shown)
    return result.getvalue()


def _no_folder(folder: Path) -> str:
    return f"repository = {str(folder)!r}: there is no such folder in {Path.cwd()}; name one, or use 'files'"


def _archive(repository: Path, commit: str) -> bytes:
    asked = ("rev-parse", "--path-format=absolute", "--git-path", "objects", f"{commit}^{{commit}}")
    # Attributes of the repository may leave files out of an archive, write its history into others, or name programs of this machine.
    with tempfile.TemporaryDirectory(prefix="agentrl-archive-") as folder:
        for below in ("refs", "info", "objects"):
            Path(folder, below).mkdir()
        Path(folder, "HEAD").write_text("ref: refs/heads/none\n")
        Path(folder, "info", "attributes").write_text("* -export-ignore -export-subst -filter -text -ident\n")
        try:
            objects, name = os.fsdecode(run_git(repository, *asked)).splitlines()
            env = {"GIT_DIR": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
            return run_git(Path(folder), "archive", "--format=tar", name, **env)
        except OSError as error:
            raise ConfigError(
                f"repository.git = {str(repository)!r}, commit = {commit!r}: {one_line(error)}"
            ) from error
