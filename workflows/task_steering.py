"""Which of an agent's files steer the verifier of a terminal task, and so are as they were at the start when it runs.

    image's, task's, verifier's variables ─► where programs, libraries, modules and start files are looked for ─► paths of the agent's there

A variable may name a place by a link of the image's, or relative to the working folder: `LOOK` asks a sandbox where the `places_of` a
verifier really are, and `Steering` is made of its answer. Beside these places, a file steers by its name alone (`hidden_tests.steers`).
"""

from __future__ import annotations

import os.path
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice

from agentrl.machine.sandbox_bounds import WORK
from agentrl.sandboxes.backends.start_arguments import PATH
from agentrl.workflows.hidden_tests import steers

FOLDERS = ("PYTHONHOME", "PYTHONPYCACHEPREFIX", "GIT_EXEC_PATH")
"""Variables that name folders whose every file counts."""
NAMING = (
    *("LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "ENV", "PYTHONSTARTUP", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "NODE_OPTIONS"),
    *("PERL5OPT", "RUBYOPT", "JAVA_TOOL_OPTIONS", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "PIP_CONFIG_FILE"),
)
"""Variables in which files are named that a program reads or runs before its own."""
HOMES = ("HOME", "ZDOTDIR")
START_FILES = (
    *(".profile", ".bash_profile", ".bash_login", ".bashrc", ".bash_aliases", ".shrc", ".kshrc", ".mkshrc"),
    *(".zshenv", ".zprofile", ".zshrc", ".zlogin", ".local/bin", ".cargo/env", ".cargo/bin"),
)
"""What shells read in a home, and what the scripts of installers put into PATH there."""
MODULES = (sys.stdlib_module_names - {"test"}) | {
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py", "tomli"),
    *("sitecustomize", "usercustomize"),
}
"""Modules that tests are run by."""
_LOOKS_IN_WORKDIR = re.compile(
    r"""PYTHONPATH
    | \bpython[\d.]*["'}]* ([\s\\]+ (-[WX][\s\\]+\S+ | -\w+))* [\s\\]* ((?<=[\s\\])-\w*[mc] | (?<=\s)-(?=\s) | <)
    | \| [\s\\]* (\S*/)?python[\d.]* \s* $""",
    re.VERBOSE | re.MULTILINE,
)
"""`python -m`, and a program of its command line (`-c`) or of its standard input."""
_PLUGIN = re.compile(r"(?:^|\s)-p[\s=]*([\w.]+)")
PROGRAMS = frozenset({"python", "python3", "pytest", "py.test", "pip", "pip3", "uv", "uvx", "sh", "bash", "env"})
"""Programs that tests are run by, wherever an image has its own."""
LOOK = """
import importlib.metadata, importlib.util, json, os, re, shutil, sys
asked = json.loads(sys.stdin.read())
os.chdir(asked["workdir"])

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

# What pytest imports by itself: its plugins, and what these need. A plugin that is the agent's to work on is not meant.
packages = {}
for top, names in importlib.metadata.packages_distributions().items():
    for name in names:
        packages.setdefault(plain(name), set()).add(top)
found = {plain(one.metadata["Name"]): one for one in importlib.metadata.distributions()}
left = ["pytest", *(name for name, one in found.items() if any(point.group == "pytest11" for point in one.entry_points))]
modules, seen = set(), set()
while left:
    name = left.pop()
    if name in seen or name not in found:
        continue
    seen.add(name)
    modules |= packages.get(name, set())
    left += [plain(re.match(r"[\\w.-]+", need)[0]) for need in found[name].requires or () if "extra ==" not in need]

def is_own(module):
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    return any(os.path.realpath(place).startswith("/sandbox/") for place in places)

programs = set()
for folder in asked["path"].split(":"):
    try:
        programs.update(os.listdir(folder or "."))
    except OSError:
        pass
print(json.dumps({
    "real": [os.path.realpath(path) for path in asked["paths"]],
    "missing": [word for word in asked["programs"] if shutil.which(word, path=asked["path"]) is None],
    "programs": sorted(programs),
    "modules": sorted(module for module in modules if module.isidentifier() and not is_own(module)),
}))
"""
"""Run in a sandbox that holds the task's files as they were at the start."""


@dataclass(frozen=True)
class Places:
    """The places that the verifier's variables name, as they name them: absolute, or relative to the working folder."""

    path: str
    libraries: tuple[str, ...]
    folders: tuple[str, ...]
    files: tuple[str, ...]
    modules: tuple[str, ...]
    """Folders where modules are looked for."""
    plugins: frozenset[str]
    """Modules of pytest's that variables name."""

    @property
    def groups(self) -> list[Sequence[str]]:
        """Those of PATH, those of libraries, those whose every file counts, and those of modules."""
        return [_entries(self.path), self.libraries, [*self.folders, *self.files], self.modules]


def _entries(listed: str | None) -> tuple[str, ...]:
    """Return the folders of a list such as PATH, in which an empty one is the working folder."""
    return () if listed is None else tuple(entry or "." for entry in listed.split(":"))


def places_of(env: Mapping[str, str]) -> Places:
    """Return the places that variables name."""
    homes = [env[name] for name in HOMES if env.get(name)]
    named = [word for name in NAMING if name in env for word in re.split(r"[\s:,;=]+", env[name]) if word]
    plugins = [*env.get("PYTEST_PLUGINS", "").split(","), *_PLUGIN.findall(env.get("PYTEST_ADDOPTS", ""))]
    return Places(
        path=env.get("PATH", PATH),
        libraries=_entries(env.get("LD_LIBRARY_PATH")),
        folders=tuple(entry for name in FOLDERS for entry in _entries(env.get(name))),
        files=tuple(dict.fromkeys([*named, *(f"{home}/{name}" for home in homes for name in START_FILES)])),
        modules=_entries(env.get("PYTHONPATH")),
        plugins=frozenset(name.strip().partition(".")[0] for name in plugins if name.strip()),
    )


@dataclass(frozen=True)
class Steering:
    """Which paths of a snapshot steer the verifier. All paths are named as snapshots have them, `app/file`."""

    keep: tuple[str, ...]
    """Names that are the agent's all the same."""
    programs: tuple[str, ...]
    """Folders in which a file of one of `program_names` steers."""
    program_names: frozenset[str]
    libraries: tuple[str, ...]
    """Folders below which libraries steer."""
    below: tuple[str, ...]
    """Paths that steer with all that is below them."""
    modules: tuple[str, ...]
    """Folders in which a module of one of `module_names` steers."""
    module_names: frozenset[str]

    def __call__(self, path: str) -> bool:
        """Return whether the file of a path is to be as it was at the start."""
        parts = path.split("/")
        others = [part for part in parts if not any(fnmatchcase(part, name) for name in self.keep)]
        if steers("/".join(others)):
            return True
        folder, _, name = path.rpartition("/")
        if name not in others:
            return False
        if folder in self.programs and name in self.program_names:
            return True
        if ".so" in name and any(path.startswith(f"{place}/") for place in self.libraries):
            return True
        if any(f"{path}/".startswith(f"{place}/") for place in self.below):
            return True
        for place in self.modules:
            if path.startswith(f"{place}/"):
                first = path[len(place) + 1 :].partition("/")[0]
                if first in others and first.partition(".")[0] in self.module_names:
                    return True
        return False

    def stands_for_a_place(self, link: str) -> bool:
        """Return whether a link of the agent's has one of these places be another folder."""
        places = (*self.programs, *self.libraries, *self.below, *self.modules)
        return any(f"{place}/".startswith(f"{link}/") for place in places)


def steering(
    places: Places,
    real: Sequence[str],
    programs: Iterable[str],
    imported: Iterable[str],
    *,
    writable: Sequence[str],
    keep: Sequence[str],
    in_workdir: bool,
) -> Steering:
    """Return which paths steer a verifier.

    Args:
        places: What `places_of` gave.
        real: The real path in a sandbox of each place of `places.groups`, one group after another.
        programs: The names in the folders of PATH.
        imported: The modules of pytest's plugins, and of what these need.
        writable: The folders of the agent's.
        keep: Names that are the agent's all the same.
        in_workdir: Whether modules are looked for right in the folders of the agent's.
    """
    roots = [root.strip("/") for root in writable]
    left = iter(real)
    found: list[tuple[str, ...]] = []
    for group in places.groups:
        inside = [path.removeprefix(f"{WORK}/") for path in islice(left, len(group)) if path.startswith(f"{WORK}/")]
        found.append(tuple(dict.fromkeys(inside)))
    modules = dict.fromkeys([*found[3], *(roots if in_workdir else ())])
    return Steering(
        keep=tuple(keep),
        programs=found[0],
        program_names=PROGRAMS.union(programs),
        libraries=found[1],
        # Where every file of a working folder would count, nothing of the agent's would.
        below=tuple(path for path in found[2] if path not in roots),
        modules=tuple(modules),
        module_names=frozenset({*MODULES, *places.plugins, *imported}),
    )


def looks_in_workdir(script: str, env: Mapping[str, str]) -> bool:
    """Return whether a module of the working folder goes before Python's own of that name, for programs of a script."""
    return "PYTHONPATH" in env or _LOOKS_IN_WORKDIR.search(script) is not None


def interpreter_of(script: bytes) -> list[str]:
    """Return the programs that a script is run by: `/bin/sh`, or `/usr/bin/env` and `bash`, and bash where its first line names none."""
    first = script.partition(b"\n")[0].decode(errors="replace")
    if not first.startswith("#!"):
        return ["bash"]
    try:
        words = shlex.split(first[2:])
    except ValueError:
        words = first[2:].split()
    if words and os.path.basename(words[0]) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return [words[0], *named[:1]]
    return words[:1]
