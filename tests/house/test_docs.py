"""README and docs name only what exists: links, paths, modules, commands with their options, params."""

import importlib.util
import re
from pathlib import Path

import pytest
import typer.main

from simic import params
from simic.cli import app

ROOT = Path(__file__).parents[2]
READ = [
    *(ROOT / f"{page}.md" for page in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "deploy" / "README.md",
]
PAGES = [*READ, *sorted((ROOT / "docs" / "history").glob("*.md"))]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MOST_WORDS = {
    "README.md": 900,
    "docs": 6800,
}  # without docs/history and what benchmarks.md measures


# Of deployments and an environment: no paths.
NAMES = ("simic/train", "simic/watch", "simic/retrain", "simic/Growth-v0")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return the anchors of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", READ, ids=name)
def test_every_path_and_module_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(
        r"(?<![\w/:.])((?:simic|tests|docs|benchmarks|examples|flows)/[\w./*-]*[\w*])", text
    ):
        assert path in NAMES or any(ROOT.glob(path)), path
    for module in re.findall(r"python -m ([\w.]+)", text) + re.findall(
        r"from (simic[\w.]*) import", text
    ):
        assert importlib.util.find_spec(module), module


@pytest.mark.parametrize("page", READ, ids=name)
def test_every_command_can_be_given(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(
        r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    for target in re.findall(r"(?:^    |`)make ([a-z][\w-]*)", text, re.MULTILINE):
        assert target in targets, target
    for command, rest in re.findall(r"(?:^    |`)simic ([\w-]+)([^#`\n]*)", text, re.MULTILINE):
        assert command in COMMANDS, command
        options = {option for parameter in COMMANDS[command].params for option in parameter.opts}
        assert options >= set(re.findall(r"(?<=\s)--?[a-zA-Z][\w-]*", rest)), (
            f"simic {command}{rest}"
        )
    for override in re.findall(r"-S ([a-z_.]+=[^\s'`]+)", text):
        params.load(ROOT / "params.yaml", [override])


@pytest.mark.parametrize("place", MOST_WORDS)
def test_what_a_user_reads_is_short(place: str) -> None:
    """Lines and corners of tables are no words."""
    pages = [
        page
        for page in READ
        if place in (name(page), page.parent.name) and page.name != "benchmarks.md"
    ]
    words = {
        name(page): len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8"))) for page in pages
    }
    assert sum(words.values()) <= MOST_WORDS[place], words


def test_every_feature_has_what_shows_it() -> None:
    """Each named test is there, and each example is run by a test."""
    text = (ROOT / "docs" / "history" / "agent_features.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if "●" in line]
    assert len(rows) > 15
    runs = "".join(
        (ROOT / "tests" / name).read_text(encoding="utf-8")
        for name in ("test_examples.py", "agent/test_export.py")
    )
    for row in rows:
        shown = re.findall(r"`((?:tests|examples)/[\w/]+\.py)(?:::(\w+))?`", row)
        assert shown, row
        for file, test in shown:
            code = (ROOT / file).read_text(encoding="utf-8")
            assert f"\ndef {test}(" in code if test else Path(file).stem in runs, (file, test)
