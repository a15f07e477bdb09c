"""A simulated power cut: what a program did to its files, as strace saw it, and what a disk may hold of that at any moment.

What was synced is there: a file's content by the file, a name by its folder. Of everything else any part may be there or not,
whatever the order: each sector of each write, each truncation, each name made, renamed or removed. SQLite's `-shm` file is
shared memory; it never survives.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,lseek,write,writev,pwrite64,pwritev,sendfile,copy_file_range,ftruncate,truncate,"
    "fallocate,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,fsync,fdatasync,mmap"
)
_LINE = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


def strace(trace: Path) -> list[str]:
    """The command that writes a trace of the command that follows it."""
    return ["strace", "-f", "--seccomp-bpf", "-xx", "-s", "100000000", "-e", f"trace={CALLS}", "-o", str(trace)]


@dataclass(frozen=True)
class Call:
    """A system call that succeeded."""

    name: str
    arguments: list[str]
    result: int


def calls(trace: Path) -> Iterator[Call]:
    """The calls of a trace, in the order in which they ended; but a descriptor is free for other threads before its close ends, so
    that a close comes where it began."""
    unfinished: dict[str, str] = {}
    with trace.open() as lines:
        for line in lines:
            process, _, rest = line.partition(" ")
            if rest.rstrip().endswith("<unfinished ...>"):
                unfinished[process] = line.rstrip().removesuffix("<unfinished ...>").rstrip()
                if (closing := re.match(r" *close\((\d+)", rest)) is not None:
                    yield Call("close", [closing[1]], 0)
                continue
            if "<... close resumed>" in rest:
                continue
            if "<... " in rest[:20]:
                line = unfinished.pop(process) + line.split("resumed>", 1)[1]
            found = _LINE.match(line)
            if found and not found[3].startswith("-"):
                yield Call(found[1], found[2].split(", "), int(found[3], 0))


@dataclass(eq=False)
class File:
    """`stable` is what the disk holds; `pending` what it may hold besides."""

    stable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(offset, what was written), or (size, None) for a truncation."""
    size: int = 0

    def change(self, offset: int, data: bytes | None) -> None:
        self.pending.append((offset, data))
        self.size = offset if data is None else max(self.size, offset + len(data))

    def sync(self) -> None:
        self.stable = self.content(None)
        self.pending = []

    def content(self, choice: random.Random | None, share: float = 1.0) -> bytes:
        """What the disk may hold: each pending sector with the probability `share`."""
        content = bytearray(self.stable)
        for offset, data in self.pending:
            if data is None:
                if choice is None or choice.random() < share:
                    content = content[:offset] + bytes(max(0, offset - len(content)))
                continue
            at = 0
            while at < len(data):
                end = min(len(data), (offset + at) // SECTOR * SECTOR + SECTOR - offset)
                if choice is None or choice.random() < share:
                    if len(content) < offset + end:
                        content += bytes(offset + end - len(content))
                    content[offset + at : offset + end] = data[at:end]
                at = end
        return bytes(content)


@dataclass(eq=False)
class Folder:
    """`stable` is what the disk holds; `pending` are changes of names that it may hold besides, each whole or not at all."""

    stable: dict[str, File | Folder] = field(default_factory=dict)
    current: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def change(self, names: dict[str, File | Folder | None]) -> None:
        self.pending.append(names)
        self.current = _changed(self.current, names)

    def sync(self) -> None:
        self.stable, self.pending = dict(self.current), []


def _changed(entries: dict[str, File | Folder], names: dict[str, File | Folder | None]) -> dict[str, File | Folder]:
    merged = {**entries, **names}
    return {name: entry for name, entry in merged.items() if entry is not None}


@dataclass
class _Open:
    path: str
    entry: File | Folder | None
    offset: int = 0
    append: bool = False


class Disk:
    """The folder `root`, as the calls of a program change it. `marks` collects what the program wrote to the file `marks_path`."""

    def __init__(self, root: Path, marks_path: Path) -> None:
        self.root = Folder()
        self.marks: list[str] = []
        self._at = str(root)
        self._marks_path = str(marks_path)
        self._open: dict[int, _Open] = {}

    def run(self, call: Call) -> str | None:
        """Do what a call did. Returns what it changed, "write store.sqlite-wal" or so, None if nothing here."""
        name, arguments, result = call.name, call.arguments, call.result
        if name in ("open", "openat", "creat"):
            return self._opened(_text(arguments[name == "openat"]), arguments[1 + (name == "openat")], result)
        if name in ("rename", "renameat", "renameat2"):
            before, after = (_text(argument) for argument in arguments if argument.startswith('"'))
            folder, old = self._parent(before)
            target, new = self._parent(after)
            if folder is None and target is None:
                return None
            assert folder is target, "a rename from one folder to another is not simulated"
            assert folder is not None
            folder.change({old: None, new: folder.current[old]})
            return f"rename {self._short(after)}"
        if name in ("unlink", "unlinkat", "rmdir"):
            path = self._resolved(arguments)
            folder, last = self._parent(path)
            if folder is None:
                return None
            folder.change({last: None})
            return f"unlink {self._short(path)}"
        if name in ("mkdir", "mkdirat"):
            path = self._resolved(arguments)
            folder, last = self._parent(path)
            if folder is None:
                return None
            folder.change({last: Folder()})
            return f"mkdir {self._short(path)}"
        return self._with_descriptor(name, arguments, result)

    def file_of(self, call: Call) -> str:
        """The file or folder that a call was given as a descriptor; "." for the root, "" for one elsewhere."""
        handle = self._open.get(int(call.arguments[0]))
        if handle is None or self._entry(handle.path) is None:
            return ""
        return self._short(handle.path) if handle.path != self._at else "."

    def _opened(self, path: str, flags: str, descriptor: int) -> str | None:
        self._open[descriptor] = handle = _Open(path, self._entry(path), append="O_APPEND" in flags)
        if (folder := self._parent(path)[0]) is None:
            return None
        if handle.entry is None and "O_CREAT" in flags:
            handle.entry = File()
            folder.change({Path(path).name: handle.entry})
            return f"create {self._short(path)}"
        if isinstance(handle.entry, File) and "O_TRUNC" in flags:
            handle.entry.change(0, None)
            return f"truncate {self._short(path)}"
        return None

    def _with_descriptor(self, name: str, arguments: list[str], result: int) -> str | None:
        number = arguments[4] if name == "mmap" else arguments[0]
        handle = self._open.get(int(number)) if number.isdigit() else None
        if name == "close":
            self._open.pop(int(number), None)
        if handle is None or name == "close":
            return None
        entry, short = handle.entry, self._short(handle.path)
        if name == "lseek":
            handle.offset = result
        elif handle.path == self._marks_path and name == "write":
            self.marks.append(_bytes(arguments[1]).decode())
        elif entry is None or (
            name == "mmap" and ("MAP_SHARED" not in arguments[3] or "PROT_WRITE" not in arguments[2])
        ):
            return None
        elif name in ("fsync", "fdatasync"):
            entry.sync()
            return f"sync {short}"
        elif isinstance(entry, File) and name in ("write", "writev", "sendfile", "pwrite64"):
            offset = int(arguments[3]) if name == "pwrite64" else entry.size if handle.append else handle.offset
            if name == "sendfile":
                begin = int(arguments[2].split("]")[0].strip("["))
                with Path(self._open[int(arguments[1])].path).open("rb") as source:
                    source.seek(begin)
                    data = source.read(result)
            else:
                data = b"".join(map(_bytes, _STRING.findall(", ".join(arguments[1:]))))[:result]
            entry.change(offset, data)
            handle.offset = offset + len(data) if name != "pwrite64" else handle.offset
            return f"write {short}"
        elif isinstance(entry, File) and name == "ftruncate":
            entry.change(int(arguments[1]), None)
            return f"truncate {short}"
        else:
            assert handle.path.endswith("-shm"), f"{name} of {handle.path} is not simulated"
        return None

    def _resolved(self, arguments: list[str]) -> str:
        path = _text(next(argument for argument in arguments if argument.startswith('"')))
        if path.startswith("/") or not arguments[0].isdigit():
            return path
        return f"{self._open[int(arguments[0])].path}/{path}"

    def _short(self, path: str) -> str:
        return path.removeprefix(self._at + "/")

    def _parent(self, path: str) -> tuple[Folder | None, str]:
        folder, _, name = path.rpartition("/")
        entry = self._entry(folder)
        return (entry if isinstance(entry, Folder) else None), name

    def _entry(self, path: str) -> File | Folder | None:
        if path != self._at and not path.startswith(self._at + "/"):
            return None
        entry: File | Folder | None = self.root
        for name in filter(None, path.removeprefix(self._at).split("/")):
            if not isinstance(entry, Folder):
                return None
            entry = entry.current.get(name)
        return entry

    def after_a_cut(self, seed: int | None, share: float = 0.5) -> dict[str, bytes | None]:
        """What may be there after a cut now, by path; None for a folder.

        `share` is the probability that something that was not synced is there: 0 is nothing, 1 is all.
        """
        choice = random.Random(seed)
        found: dict[str, bytes | None] = {}

        def visit(folder: Folder, path: str) -> None:
            entries = folder.stable
            for names in folder.pending:
                if choice.random() < share:
                    entries = _changed(entries, names)
            for name, entry in entries.items():
                if isinstance(entry, Folder):
                    found[f"{path}{name}"] = None
                    visit(entry, f"{path}{name}/")
                elif not name.endswith("-shm"):
                    # A file is often there whole, or not at all; its sectors one by one are the rarer case.
                    whole = choice.choice((0.0, share, 1.0)) if 0 < share < 1 else share
                    found[f"{path}{name}"] = entry.content(choice, whole)

        visit(self.root, "")
        return found


def write(state: dict[str, bytes | None], folder: Path) -> None:
    """Lay out what is there after a cut."""
    for path, content in state.items():
        if content is None:
            (folder / path).mkdir(parents=True)
        else:
            (folder / path).write_bytes(content)


def _bytes(argument: str) -> bytes:
    return bytes.fromhex(argument.strip('"').replace("\\x", ""))


def _text(argument: str) -> str:
    return _bytes(argument).decode()
