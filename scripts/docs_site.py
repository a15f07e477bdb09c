"""The pages of the documentation's site that are not written by hand; a hook of mkdocs (mkdocs.yml names it).

    README.md                          -> index.md
    RunConfig                          -> configuration.md
    each package that has an __all__   -> reference/NAME.md, from its docstrings
    each file that a page links to     -> code/PATH.md

Pages link to files of the repository by relative paths, which are right where the repository is browsed. Here they become links
into the site. A link to a file that is not there ends the build.
"""

from __future__ import annotations

import ast
import posixpath
import re
import tomllib
import types
import typing
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from agentrl.config import config_fields
from agentrl.config.section import REQUIRED

ROOT = Path(__file__).parents[1]
API_INDEX = "reference/index.md"
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(?=\))")
FILE_AS_TEXT = re.compile(r"\[[\w/-]+\.md\]\(([^)\s:#]+)")
"""A link whose text is the name of a page's file, which says little outside of the repository."""
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".yml": "yaml", ".jsonl": "json"}

_origins: dict[str, Path] = {}
"""Page of the site -> the file of the repository that it shows."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of the API reference in the navigation, below their index."""
    for item in config.nav or []:
        for pages in item.values() if isinstance(item, dict) else ():
            if API_INDEX in pages:
                pages[pages.index(API_INDEX)] = {"Python": [API_INDEX, *(f"reference/{m}.md" for m in public_names())]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    _origins.clear()
    _add(files, config, "index.md", (ROOT / "README.md").read_text(), ROOT / "README.md")
    _add(files, config, "configuration.md", configuration_page())
    _add(files, config, API_INDEX, reference_index())
    for module in public_names():
        _add(files, config, f"reference/{module}.md", reference_page(module))
    waiting = [Path(config.docs_dir) / file.src_uri for file in files if file.is_documentation_page()]
    waiting = [ROOT / "README.md", *(path for path in waiting if path.exists())]
    while waiting:
        source = waiting.pop()
        for match in LINK.finditer("".join(FENCE.split(source.read_text())[::2])):
            target = _linked_file(source, match[2])
            uri = _uri_of(target)
            if files.get_file_from_path(uri) is None:
                text = target.read_text()
                if target.suffix == ".md":
                    waiting.append(target)
                else:
                    text = f"{UNSEARCHED}# {target.relative_to(ROOT)}\n\n```{LANGUAGES.get(target.suffix, 'text')}\n{text}\n```\n"
                _add(files, config, uri, text, target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to pages of the site, and names of files into titles of pages."""
    uri = page.file.src_uri
    source = _origins.get(uri, Path(config.docs_dir) / uri)
    if not source.exists():
        return markdown

    def rewritten(match: re.Match[str]) -> str:
        target = _uri_of(_linked_file(source, match[2]))
        return match[1] + posixpath.relpath(target, posixpath.dirname(uri) or ".") + (match[3] or "")

    def titled(match: re.Match[str]) -> str:
        title = _linked_file(source, match[1]).read_text().partition("\n")[0].removeprefix("# ")
        return f"[{title}]({match[1]}"

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(rewritten, FILE_AS_TEXT.sub(titled, part)) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Check that a page of the API reference documents every name that its package lists."""
    module = page.file.src_uri.removeprefix("reference/").removesuffix(".md")
    for name, path in own_names().get(module, {}).items():
        if f'id="{path}"' not in html:
            raise PluginError(f"{module} lists {name} in __all__, and the reference has no entry for it")
    return html


@cache
def public_names() -> dict[str, dict[str, str]]:
    """Return what each package lists in `__all__`, and the classes of `agentrl.errors`: name -> path of its definition."""
    found: dict[str, dict[str, str]] = {}
    for package in SETUPTOOLS["packages"]:
        if "__all__" in _source(package):
            found[package] = {name: _definition(package, name) for name in import_module(package).__all__}
    errors = [node.name for node in ast.parse(_source("agentrl.errors")).body if isinstance(node, ast.ClassDef)]
    return found | {"agentrl.errors": {name: f"agentrl.errors.{name}" for name in errors if not name.startswith("_")}}


def own_names() -> dict[str, dict[str, str]]:
    """Return `public_names`, each definition at one module alone: the innermost that lists it and that it is part of."""
    found: dict[str, dict[str, str]] = {module: {} for module in public_names()}
    owners: dict[str, str] = {}
    for module in sorted(found, key=len):
        for path in public_names()[module].values():
            if path not in owners or path.startswith(f"{module}."):
                owners[path] = module
    for module, names in public_names().items():
        found[module] = {name: path for name, path in names.items() if owners[path] == module}
    return found


def _source(module: str) -> str:
    package = max((p for p in SETUPTOOLS["package-dir"] if f"{module}.".startswith(f"{p}.")), key=len)
    path = ROOT.joinpath(SETUPTOOLS["package-dir"][package], *module.removeprefix(package).strip(".").split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return source.read_text() if source.is_file() else ""


def _definition(module: str, name: str) -> str:
    """Return the path of the definition that a module imports under a name."""
    parsed = ast.parse(_source(module))
    if any(
        isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        for node in parsed.body
    ):
        return f"{module}.{name}"
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("agentrl"):
            for imported in node.names:
                if (imported.asname or imported.name) == name:
                    return _definition(node.module, imported.name)
    return f"{module}.{name}"


def reference_index() -> str:
    """Return the page that lists what each package offers, with links to the entries."""
    lines = ["# Python API", "", "This page lists every public name; each package has a page of its own.", ""]
    for module, names in public_names().items():
        lines += [f"## [`{module}`]({module}.md)", ""]
        lines += [", ".join(f"[`{name}`][{path}]" for name, path in names.items()), ""]
    return "\n".join(lines)


def reference_page(module: str) -> str:
    """Return the page of one package, which mkdocstrings fills: its docstring, then its names."""
    lines = [f"# {module}", "", f"::: {module}", "    options:", "      members: false", ""]
    own = own_names()[module]
    elsewhere = [f"[`{name}`][{path}]" for name, path in public_names()[module].items() if name not in own]
    if elsewhere:
        lines += ["Listed here, and documented with the part that defines them: " + ", ".join(elsewhere) + ".", ""]
    for path in own.values():
        lines += [
            f"::: {path}",
            "    options:",
            "      show_root_heading: true",
            "      show_root_toc_entry: true",
            "      show_root_full_path: false",
            "",
        ]
    return "\n".join(lines)


TABLE = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]


def configuration_page() -> str:
    """Return the page of all keys of `RunConfig`, each with its type, its default and its line of documentation."""
    lines = [
        "# Configuration",
        "",
        "This page lists every setting of a run, from the type that checks them. A key is written `section.name` on the command",
        "line (`--section.name VALUE`), and `name` below `[section]` in a TOML file. Later sources win: defaults, then TOML files in",
        'turn, then the command line. A section that has a key `kind` may be written as its kind alone (`engine = "sglang"`,',
        '`trainer.objective = "gspo"`, `--trainer.objective gspo`), and `model` as its path; a source that names another kind of a',
        "section begins that section anew. A section without which nothing happens (`trainer.lora`) may be left out.",
        "",
    ]
    section = ""
    lines += TABLE
    for key in config_fields():
        within = key.name.rpartition(".")[0]
        if within != section:
            section = within
            lines += ["", f"{'###' if '.' in within else '##'} `{within}`", "", key.section, "", *TABLE]
        # A | ends a cell, but within a code span.
        meaning = re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or "&#124;", key.documentation).replace("\n", " ")
        lines.append(f"| `{key.name}` | `{_type_text(key.hint)}` | {_default_text(key.default)} | {meaning} |")
    return "\n".join([*lines, ""])


def _type_text(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type_text(arguments[0])
    if origin is typing.Literal:
        return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type_text(argument) for argument in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_type_text(argument) for argument in arguments)}]"
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def _default_text(value: Any) -> str:
    if value is REQUIRED:
        return "required"
    return "" if value is None else f"`{value!r}`".replace("'", '"')


def _linked_file(source: Path, link: str) -> Path:
    target = (source.parent / link).resolve()
    if target.is_dir():
        target = target / "README.md"
    if not target.is_file():
        raise PluginError(f"{source.relative_to(ROOT)} links to {link}, which does not exist")
    return target


def _uri_of(target: Path) -> str:
    if target == ROOT / "README.md":
        return "index.md"
    path = target.relative_to(ROOT)
    if path.parts[0] == "docs":
        return posixpath.join(*path.parts[1:])
    return f"code/{path.as_posix()}" + ("" if path.suffix == ".md" else ".md")


def _add(files: Files, config: MkDocsConfig, uri: str, text: str, origin: Path | None = None) -> None:
    file = File.generated(config, uri, content=text)
    if not uri.startswith(("index", "configuration", "reference")):
        file.inclusion = type(file.inclusion).NOT_IN_NAV
    files.append(file)
    if origin is not None:
        _origins[uri] = origin
