"""What README.md and docs/ say is there: links, functions, tests, commands, options, settings, and the pictures of a run."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from agentrl.cli.main import main
from agentrl.config import RunConfig, config_fields
from agentrl.record.end_reason import EndReason

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
OF_USERS = {"agent.py"}
"""Files that a page names and that a reader would write."""
NAMED_IN_FILE = re.compile(r"`(\w+)`(?:, with\s+`\w+`)?\s+(?:in|of)\s+\[[^\]]+\]\(([^)#]+\.py)\)")
"""`name` in [file](path), the form in which pages point into the code."""


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"^```\w*[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-") for heading in headings}


def test_readme_fits_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)\s:#]*)(?:#([^)\s]*))?\)", prose(page)):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in heading_anchors(target), f"{page.name} links to {link}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: page.name)
def test_what_a_page_names_in_a_file_is_defined_there(page: Path) -> None:
    for name, link in NAMED_IN_FILE.findall(prose(page)):
        source = (page.parent / link).read_text()
        assert re.search(rf"^\s*(?:class|def|async def) {name}\b", source, re.MULTILINE), f"no {name} in {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    for path, name in re.findall(r"`(?:tests/)?([\w/]*test_\w+\.py)(?:::(\w+))?", page.read_text()):
        file = ROOT / "tests" / path
        assert file.exists(), path
        assert not name or f"def {name}(" in file.read_text(), name


def test_the_page_that_follows_the_code_names_it() -> None:
    """So that the test before cannot pass because it finds nothing."""
    assert len(NAMED_IN_FILE.findall(prose(CONTRIBUTING))) >= 11


TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
SHIPPED = ("agentrl/", "envs/", "recipes/", "sandboxes/", "trainer/", "workflows/")
NOT_ROOMS = {"agentrl/cli/template"}
"""Folders whose files are data."""
ROOMS = sorted(
    {str(Path(name).parent) for name in TRACKED if name.startswith(SHIPPED) and name.endswith(".py")} - NOT_ROOMS
)
SCREEN = 42
"""Lines of a README."""


@pytest.mark.parametrize("room", ROOMS)
def test_the_readme_of_a_room_is_a_screen_with_its_data_flow_and_every_file_of_it(room: str) -> None:
    text = (ROOT / room / "README.md").read_text()
    assert len(text.splitlines()) <= SCREEN
    assert re.match(rf"# (agentrl\.)?{room.replace('/', '.').removeprefix('agentrl.')}\n", text), "its import name"
    assert re.search(r"^    .*─►", text, re.MULTILINE), "no data flow"
    names = re.findall(r"`([a-z_./]+\.py)`", text)
    for name in names:
        there = any(f"/{file}".endswith(f"/{name.removeprefix('../')}") for file in TRACKED)
        assert there or name in OF_USERS, f"{name} is not there"
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    listed = {name for name in re.findall(r"`(\w+\.py)`", table) if (ROOT / room / name).is_file()}
    files = {Path(name).name for name in TRACKED if str(Path(name).parent) == room and name.endswith(".py")}
    assert files - listed <= {"__init__.py"}, "files that its table does not name"


def test_every_page_begins_with_what_it_is_for() -> None:
    for page in PAGES[1:]:
        title, _, first, *_ = page.read_text().splitlines()
        assert title.startswith("# "), page.name
        assert first.startswith("This page "), page.name


def test_every_make_target_that_a_page_names_is_one() -> None:
    targets = set(re.findall(r"^([a-z][\w -]*?):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    for page in PAGES:
        named = set(re.findall(r"(?:`|\$ )make ([a-z][\w-]*)", page.read_text()))
        assert named <= known, page.name


def test_every_command_and_option_that_a_page_shows_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown: defaultdict[str, set[str]] = defaultdict(set)
    for page in PAGES:
        text = page.read_text()
        lines = [line[2:] for block in code_blocks(page) for line in block.splitlines() if line.startswith("$ ")]
        for line in [*lines, *re.findall(r"`(agentrl [a-z][^`\n]*)`", text)]:
            if found := re.match(r"agentrl ([a-z]+)", line):
                shown[found[1]] |= set(re.findall(r"(?<= --)[\w.-]+", line)) - {"help"}
    assert {"train", "eval", "audit", "doctor", "init", "serve", "sft"} <= set(shown)
    keys = {spelled_alike(key.name) for key in config_fields()}
    for command, options in shown.items():
        assert main([command, "--help"]) == 0, f"agentrl {command} --help: {capsys.readouterr().err}"
        listed = {spelled_alike(word) for word in re.findall(r"[\w.-]+", capsys.readouterr().out)} | keys
        # Flags of SGLang are passed through by any name.
        wrong = {o for o in options if spelled_alike(o) not in listed and not o.startswith("engine.flags.")}
        assert not wrong, f"agentrl {command} has no {sorted(wrong)}"


def spelled_alike(option: str) -> str:
    return option.strip("-.").replace("-", "_")


def test_nobody_is_told_to_install_a_strangers_package() -> None:
    """The project named agentrl on PyPI is another one."""
    tracked = subprocess.run(["git", "ls-files", "*.md", "*.py", "*.sh"], cwd=ROOT, capture_output=True, check=True)
    for name in tracked.stdout.decode().split():
        if (ROOT / name).is_file():
            text = (ROOT / name).read_text()
            assert not re.search(r"pip install\s+(-U\s+)?['\"]?agentrl(?!-sdk)\b", text), name


def test_the_configuration_page_has_every_setting() -> None:
    page = load_script("docs_site").configuration_page()
    shown = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    assert {key.name for key in config_fields()} <= shown
    assert "| `rollout.batch_size` | `int` | `64` | B: episodes in one training batch" in page


@pytest.mark.slow
def test_a_public_name_without_an_entry_or_a_link_to_nothing_ends_the_build() -> None:
    site = load_script("docs_site")
    config = load_config(str(ROOT / "mkdocs.yml"))
    page = page_at("reference/agentrl.md", config)
    entries = "".join(f'<h2 id="{path}">' for path in site.own_names()["agentrl"].values())
    assert site.on_page_content(entries, page, config, Files([])) == entries
    with pytest.raises(PluginError, match=r"agentrl lists \w+ in __all__"):
        site.on_page_content("", page, config, Files([]))
    tutorial = page_at("tutorial.md", config)
    assert site.on_page_markdown("[x](../README.md)", tutorial, config, Files([])) == "[x](index.md)"
    with pytest.raises(PluginError, match="links to gone"):
        site.on_page_markdown("[x](gone.md)", tutorial, config, Files([]))


def page_at(uri: str, config: MkDocsConfig) -> Page:
    return Page(None, File(uri, config.docs_dir, config.site_dir, config.use_directory_urls), config)


def test_the_page_of_grading_says_how_to_get_pytest_before_the_program_that_needs_it() -> None:
    page = (ROOT / "docs" / "grading.md").read_text()
    before, found, _ = page.partition("\nimport pytest\n")
    assert found
    assert "`pip install pytest`" in before


def test_every_reason_why_an_episode_ends_is_explained() -> None:
    page = (ROOT / "docs" / "episodes.md").read_text()
    table = page.partition("## Reasons")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(EndReason)


def test_a_run_is_drawn_from_its_metrics(tmp_path: Path) -> None:
    row = {
        "reward_groups": 8,
        "reward_episodes": 64,
        "reward_failed": 0,
        "reward_dropped": 0,
        "staleness_mean": 0.5,
        "staleness_max": 2.0,
        "train_s": 0.5,
        "wait_s": 0.5,
        "pause_s": 0.02,
        "step_s": 1.0,
        "tokens": 3_000,
        "episodes_running": 5,
        "episodes_finished": 640,
        "episodes_failed": 0,
        "groups_rejected": 1,
        "truncated_share": 0.0,
        "failed_calls_share": 0.0,
    }
    rows = [row | {"step": step, "wall_s": 10.0 + step, "reward_mean": 0.4 + 0.1 * step} for step in (1, 2, 3)]
    run_dir = tmp_path / "quickstart"
    run_dir.mkdir()
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run_dir / "summary.json").write_text(json.dumps({"eval_before": 0.45, "eval_after": 0.75}))
    (run_dir / "config.json").write_text(RunConfig().model_dump_json())
    load_script("run_pictures").main(run_dir, tmp_path / "pictures")
    terminal, reward = (ElementTree.parse(tmp_path / "pictures" / f"{name}.svg") for name in ("terminal", "reward"))
    said = " ".join("".join(terminal.getroot().itertext()).replace("\xa0", " ").split())
    assert "$ make quickstart" in said
    assert "0.700 (n = 8 groups, 0 dropped, 64 episodes)" in said
    assert "640 finished" in said
    drawn = "".join(reward.getroot().itertext())
    assert "held-out tasks: 0.45" in drawn
    assert "held-out tasks: 0.75" in drawn
    (line,) = reward.getroot().iter("{http://www.w3.org/2000/svg}polyline")
    assert len(line.attrib["points"].split()) == 3


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_is_small_and_has_a_background_of_its_own(picture: Path) -> None:
    """So it can be read on a page of any colour. Nothing is fetched for it."""
    root = ElementTree.parse(picture).getroot()
    assert picture.stat().st_size < 20_000
    assert next(root.iter("{http://www.w3.org/2000/svg}rect"), None) is not None
    assert not re.search(r"url\(['\"]?http|href=\"http", picture.read_text())


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_is_readable_on_a_narrow_screen(picture: Path) -> None:
    """The site makes it no smaller than a width, at which its smallest text has 9 pixels."""
    narrowest = re.search(
        r'img\[src\$="\.svg"\] \{ min-width: (\d+)px; \}', (ROOT / "docs/stylesheets/site.css").read_text()
    )
    text = picture.read_text()
    width = re.search(r'viewBox="0 0 ([\d.]+) ', text)
    sizes = [float(size) for size in re.findall(r"(?:font-size: ?|font:)([\d.]+)px", text)]
    assert narrowest is not None
    assert width is not None
    assert min(sizes) * int(narrowest[1]) / float(width[1]) >= 9
