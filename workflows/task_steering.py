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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    | \b(python|pypy)[\d.]*["'}]* ([\s\\]+ (-[WX][\s\\]+\S+ | -\w+))* [\s\\]*
      ((?<=[\s\\])["']?-\w*[mc] | (?<=\s)-(?=\s) | <)
    | (\$\{?\w+[}"']* | \b(uv|poetry|pdm|hatch|coverage)[\s\\]+run) ([\s\\]+ (-[WX][\s\\]+\S+ | -\w+))* [\s\\]+ ["']?-\w*[mc]
    | \|&? [\s\\]* (\S*/)?python[\d.]* \s* ($ | [;&|)] | \d?>)""",
    re.VERBOSE | re.MULTILINE,
)
"""`python -m`, and a program of its command line (`-c`) or of its standard input; also where a variable, or a runner, stands for `python`."""
IMPORTED = (".py", ".pyc", ".so")
"""How the names of files end that Python imports."""
_SITE = re.compile(r"(?:.*?/)?lib(?:64)?/python[\d.]+/site-packages(?=/|$)")
_PLUGIN = re.compile(r"(?:^|\s)-p[\s=]*([\w.]+)")
PROGRAMS = frozenset({"python", "python3", "pytest", "py.test", "pip", "pip3", "uv", "uvx", "sh", "bash", "env"})
"""Programs that tests are run by, wherever an image has its own."""
LOOK = """
import importlib.metadata, importlib.util, json, os, re, shutil, sys
asked = json.loads(sys.stdin.read())
os.chdir(asked["workdir"])
sys.path += asked["sites"]

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
    real = [os.path.realpath(place) for place in places]
    installed = tuple(site + "/" for site in asked["sites"])
    return any(place.startswith("/sandbox/") and not place.startswith(installed) for place in real)

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
    packages: frozenset[str]
    """Folders of these that were packages at the start: every module below them is imported from there."""
    sites: tuple[str, ...]
    """Folders of installed packages. A `.pth` file there is run by each program in Python."""

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
        if folder in self.sites and name.endswith(".pth"):
            return True
        return name.endswith(IMPORTED) and any(
            parts[0] in others and self._imports(place, parts) for place, parts in self._below_modules(path)
        )

    def stands_for_a_place(self, link: str) -> bool:
        """Return whether a link of the agent's has one of these places, or a module there, be another folder."""
        places = (*self.programs, *self.libraries, *self.below, *self.modules)
        if any(f"{place}/".startswith(f"{link}/") for place in places):
            return True
        return any(
            parts[0] in self.module_names and (len(parts) == 1 or f"{place}/{parts[0]}" in self.packages)
            for place, parts in self._below_modules(link)
        )

    def _below_modules(self, path: str) -> Iterator[tuple[str, list[str]]]:
        for place in self.modules:
            if path.startswith(f"{place}/"):
                yield place, path[len(place) + 1 :].split("/")

    def _imports(self, place: str, parts: Sequence[str]) -> bool:
        """Return whether a file of Python's is found for a module of `module_names`. A folder alone stands behind Python's own modules."""
        first = parts[0].partition(".")[0]
        if first not in self.module_names or len(parts) == 1:
            return first in self.module_names
        is_package = len(parts) == 2 and parts[1].partition(".")[0] == "__init__"
        return parts[0] == first and (is_package or f"{place}/{first}" in self.packages)


def steering(
    places: Places,
    real: Sequence[str],
    programs: Iterable[str],
    imported: Iterable[str],
    *,
    writable: Sequence[str],
    keep: Sequence[str],
    in_workdir: bool,
    start: Collection[str] = (),
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
        start: The paths in the folders of the agent's at the start. A virtual environment there is the image's.
    """
    roots = [root.strip("/") for root in writable]
    left = iter(real)
    found: list[tuple[str, ...]] = []
    for group in places.groups:
        inside = [path.removeprefix(f"{WORK}/") for path in islice(left, len(group)) if path.startswith(f"{WORK}/")]
        found.append(tuple(dict.fromkeys(inside)))
    sites = sites_of(start)
    homes = [os.path.normpath(f"{site}/../../..") for site in sites]
    bins = [f"{home}/bin" for home in homes]
    modules = dict.fromkeys(
        [*found[3], *(roots if in_workdir else ()), *sites, *(site.rpartition("/")[0] for site in sites)]
    )
    inits = (path.rpartition("/") for path in start if path.endswith(IMPORTED))
    return Steering(
        keep=tuple(keep),
        programs=(*found[0], *bins),
        program_names=PROGRAMS.union(
            programs, (path.rpartition("/")[2] for path in start if path.rpartition("/")[0] in bins)
        ),
        libraries=found[1],
        # Where every file of a working folder would count, nothing of the agent's would.
        below=(*(path for path in found[2] if path not in roots), *(f"{home}/pyvenv.cfg" for home in homes)),
        modules=tuple(modules),
        module_names=frozenset({*MODULES, *places.plugins, *imported}),
        packages=frozenset(folder for folder, _, name in inits if name.partition(".")[0] == "__init__"),
        sites=sites,
    )


def sites_of(start: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of installed packages among some paths, as a virtual environment in the working folder has one."""
    return tuple(dict.fromkeys(found[0] for path in start if (found := _SITE.match(path))))


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
