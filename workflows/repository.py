"""A repository that an agent works on: where its files come from, and how they are packed for a sandbox.

folder, files or commit ─► tar ─► the agent's sandbox ─► tar ─► `hidden_tests.py`
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from shutil import which
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agentrl.errors import ConfigError, one_line
from agentrl.machine.git import NO_GIT, run_git
from agentrl.machine.sandbox_bounds import FILES, MAX_PACKED_BYTES


def _relative(path: str) -> str:
    parts = path.split("/")
    if {"", ".", ".."} & {*parts} or "\0" in path:
        raise ValueError("a path must be relative, below the repository, and without '.' and '..'")
    return path


RelativePath = Annotated[str, AfterValidator(_relative)]
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
            ConfigError: They cannot be read, or are too large.
        """
        if self.files is not None:
            packed = pack(self.files)
        elif self.git is not None:
            packed = _archive(self.git, self.commit)
        else:
            assert self.folder is not None
            packed = _pack_folder(self.folder)
        if len(packed) > MAX_PACKED_BYTES:
            raise ConfigError(
                f"the repository has {len(packed)} bytes packed; at most {MAX_PACKED_BYTES} go into a sandbox"
            )
        if (count := len(archive_of(packed).members)) >= FILES:
            raise ConfigError(f"the repository has {count} files and folders; at most {FILES} go into a sandbox")
        return packed


def missing_repositories(repositories: Iterable[Repository]) -> list[str]:
    """Return what of some repositories is not on this machine, each with its remedy: folders, git, commits."""
    folders: dict[Path, None] = {}
    commits: dict[Path, dict[str, None]] = {}
    for one in repositories:
        if one.folder is not None:
            folders[one.folder] = None
        if one.git is not None:
            commits.setdefault(one.git, {})[one.commit] = None
    missing = [_no_folder(folder) for folder in folders if not folder.is_dir()]
    if commits and which("git") is None:
        return [*missing, f"{len(commits)} tasks' repositories are read by git (repository.git), and {NO_GIT}"]
    for repository, named in commits.items():
        asked = [f"{commit}^{{commit}}" for commit in named]
        try:
            found = run_git(repository, "cat-file", "--batch-check", stdin="\n".join(asked) + "\n").decode()
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


class Archive:
    """A tar archive whose members are read once, and copied as they are written."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            self.members = archive.getmembers()

    def raw(self, one: tarfile.TarInfo) -> memoryview:
        """Return a member with its headers and its content."""
        blocks = -(-one.size // tarfile.BLOCKSIZE) if one.isreg() else 0
        return self.data[one.offset : one.offset_data + blocks * tarfile.BLOCKSIZE]


archive_of = lru_cache(maxsize=8)(Archive)
"""The archive of some bytes: what a task begins with is read once, and not for each of its episodes."""


def with_files(start: bytes, files: Mapping[str, str]) -> bytes:
    """Return the repository with further files, which take the place of those that are there."""
    result = io.BytesIO(start)
    with tarfile.open(fileobj=result, mode="a") as packed:
        add_files(packed, files)
    return result.getvalue()


def with_patch(start: bytes, patch: str) -> bytes:
    """Return the repository with a patch applied to it, packed anew.

    Raises:
        ConfigError: The patch does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="agentrl-patch-") as folder:
        with tarfile.open(fileobj=io.BytesIO(start)) as given:
            # Links may lead anywhere, as a repository's do: nothing is written through them, and nothing is read.
            given.extractall(folder, filter="tar")
        if patch.strip():
            # In no repository, least of all in one that these files make up: its settings may name programs for git to run here.
            nothing = {"GIT_DIR": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
            try:
                run_git(Path(folder), "apply", "--whitespace=nowarn", "-", stdin=patch, **nothing)
            except OSError as error:
                raise ConfigError(f"the patch does not apply: {one_line(error)}") from error
        return _pack_folder(Path(folder))


def pack(files: Mapping[str, str]) -> bytes:
    """Return texts as a tar archive."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as packed:
        add_files(packed, files)
    return result.getvalue()


def add_files(packed: tarfile.TarFile, files: Mapping[str, str]) -> None:
    """Add texts to an archive, by path."""
    for path, text in files.items():
        data = text.encode()
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(data), 0o755 if text.startswith("#!") else 0o644
        packed.addfile(info, io.BytesIO(data))


def name_of(one: tarfile.TarInfo) -> str:
    """Return the path of a member, written in one way."""
    return one.name.removeprefix("./").rstrip("/")


def _pack_folder(folder: Path) -> bytes:
    if not folder.is_dir():
        raise ConfigError(_no_folder(folder))

    def shown(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
        one.uid = one.gid = 0
        one.uname = one.gname = ""
        return None if name_of(one) == ".git" else one

    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as packed:
        for path in _sorted(folder.iterdir()):
            packed.add(path, arcname=path.name, filter=shown)
            if result.tell() > MAX_PACKED_BYTES:
                break
    return result.getvalue()


def _no_folder(folder: Path) -> str:
    return f"repository = {str(folder)!r}: there is no such folder in {Path.cwd()}; name one, or use 'files'"


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.name)


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
