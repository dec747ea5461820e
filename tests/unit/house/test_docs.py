"""What pages show can be pasted: examples name what their page makes, commands have their options, links lead somewhere."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from agent.cli.app import app
from sandbox import DockerEnvironment

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = re.compile(r"^```(?:python|py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ALL = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
PAGES = {
    path.relative_to(ROOT): examples
    for path in ALL
    if (examples := EXAMPLES.findall(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page)) for page in PAGES])
def test_an_example_names_only_what_its_page_makes(page: Path) -> None:
    """The names ``urllib``, ``key``, ``IMAGE`` and others were left to the reader; ``env`` is a started sandbox everywhere."""
    options = ["--isolated", "--select", "F821", "--config", 'builtins=["env"]', "--output-format=concise"]
    check = [sys.executable, "-m", "ruff", "check", *options, "--stdin-filename", "examples.py", "-"]
    done = subprocess.run(check, input="\n".join(PAGES[page]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_all_parameters_of_a_sandbox() -> None:
    """Review: cache= and pull= were missing."""
    page = (ROOT / "docs/reference/sandbox.md").read_text(encoding="utf-8")
    shown = re.search(r"`DockerEnvironment\(([^)]*)\)`\s+is a context manager", page)
    assert shown is not None
    parameters = inspect.signature(DockerEnvironment).parameters.values()
    assert shown[1].split(", ") == [each.name + ("=" if each.kind is each.KEYWORD_ONLY else "") for each in parameters]


def commands() -> list[tuple[str, str]]:
    """Return page and line of each ``gamebox`` command in a block."""
    found = []
    for path in ALL:
        fence = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if mark := re.match(r"`{3,}", line):
                fence = "" if mark[0] == fence else fence or mark[0]
            elif fence and line.startswith("gamebox "):
                found.append((str(path.relative_to(ROOT)), line))
    return found


def test_commands_have_the_options_that_pages_use() -> None:
    tree = typer.main.get_command(app)
    assert len(commands()) > 50
    wrong = []
    for page, line in commands():
        command, words = tree, shlex.split(line, comments=True)[1:]
        while words and (inner := getattr(command, "commands", {}).get(words[0])) is not None:
            command, words = inner, words[1:]
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
        used = words[: words.index("--")] if "--" in words else words
        options = {word.split("=")[0] for word in used if re.match(r"--?[a-z]", word)}
        if (command is tree and not options) or options - known:
            wrong.append((page, line, options - known))
    assert not wrong


def anchor(heading: str) -> str:
    """Return the anchor that a heading gets."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in ALL])
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, place = link.partition("#")
        target = page.parent / file if file else page
        if re.match(r"[a-z]+:", link):
            continue
        headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE) if place and target.is_file() else []
        if not target.exists() or (place and place not in map(anchor, headings)):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in ALL[2:]])
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`((?:sandbox|agent|tests|images|benchmarks)/[\w./-]+\.(?:py|md|json))`", page.read_text(encoding="utf-8"))
    assert not [each for each in named if not (ROOT / each).exists()]
