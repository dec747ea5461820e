"""Which image fits a repository, and what a sandbox's image had in the workspace beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.repo.changes import changes
from agent.repo.fitting_image import CODEACT, NODE, TOOLCHAINS, choose_image
from agent.repo.inside import make_repository
from agent.repo.laid import checked, find_laid, names_to_leave
from agent.repo.snapshot import FileState, Snapshot, take
from sandbox import LocalEnvironment
from sandbox.docker.spec import DEFAULT_IMAGE

ALL = {NODE, CODEACT, TOOLCHAINS}


@pytest.mark.parametrize(
    ("files", "there", "image", "missing"),
    [
        ((), ALL, DEFAULT_IMAGE, ""),
        (("requirements.txt",), ALL, DEFAULT_IMAGE, ""),
        (("package.json",), ALL, NODE, ""),
        (("package.json",), {CODEACT}, CODEACT, ""),
        (("package.json",), set(), DEFAULT_IMAGE, NODE),
        (("go.mod",), ALL, TOOLCHAINS, ""),
        (("Cargo.toml", "pyproject.toml"), {NODE, CODEACT}, DEFAULT_IMAGE, TOOLCHAINS),
        (("package.json", "pyproject.toml"), ALL, TOOLCHAINS, ""),
        (("package.json", "pyproject.toml"), {NODE}, NODE, ""),
        (("pom.xml",), ALL, TOOLCHAINS, ""),
    ],
)
def test_the_image_for_files(tmp_path: Path, files: tuple[str, ...], there: set[str], image: str, missing: str) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    choice = choose_image(tmp_path, there.__contains__)
    assert (choice.image, choice.missing) == (image, missing)
    if missing:
        assert f"gamebox setup --{missing.partition('/')[2]}" in str(choice)
    elif image != DEFAULT_IMAGE:
        assert files[0] in str(choice)
    else:
        assert not str(choice)


def test_links_pipes_and_folders_are_no_markers(tmp_path: Path) -> None:
    (tmp_path / "go.mod").mkdir()
    os.mkfifo(tmp_path / "Cargo.toml")
    (tmp_path / "package.json").symlink_to("/etc/passwd")

    def never(_name: str) -> bool:
        raise AssertionError

    assert choose_image(tmp_path, never).image == DEFAULT_IMAGE
    assert choose_image(tmp_path / "missing", never).image == DEFAULT_IMAGE


def test_an_agent_keeps_an_image_that_fits(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text("")
    choice = choose_image(tmp_path, ALL.__contains__, CODEACT)
    assert (choice.image, choice.chosen) == (CODEACT, False)


def test_a_sandbox_cannot_hide_changes_to_files_of_the_repository() -> None:
    files = ["src/a.py", "build/kept.txt", "x"]
    sent = ["src", "src/a.py", "build", "x", "../y", "/etc", ".git/hooks", "a//b", 7, None, "a\nb", "node_modules", "src/gen"]
    assert checked(sent, files) == ("node_modules", "src/gen")
    assert len(checked([f"n{number}" for number in range(5000)], files)) == 1000


def test_only_folders_of_packages_are_not_copied_back(tmp_path: Path) -> None:
    state = FileState("0")
    snapshot = Snapshot(tmp_path, tmp_path, None, {"a/.venv/x": state}, laid=("node_modules", ".venv", "src", "b/node_modules"))  # type: ignore[arg-type]
    assert names_to_leave(snapshot) == ("node_modules",)


def test_what_an_image_brought_is_no_change(tmp_path: Path) -> None:
    repo, work = tmp_path / "repo", tmp_path / "work"
    (repo / "src").mkdir(parents=True)
    (repo / "src/a.py").write_text("1")
    snapshot = take(repo, tmp_path / "before")
    (work / "src/gen [1]").mkdir(parents=True)
    (work / "src/a.py").write_text("1")
    (work / "src/gen [1]/g.py").write_text("g")
    (work / "node_modules").mkdir()
    (work / "node_modules/m.js").write_text("m")
    (work / "lock.json").write_text("{}")
    with LocalEnvironment(workspace=work) as environment:
        assert find_laid(environment, snapshot) is snapshot  # its image has no files there
        found = Snapshot(repo, snapshot.copy, snapshot.rules, snapshot.files, laid=("lock.json", "node_modules", "src/gen [1]"))
        assert make_repository(environment, without=found.laid) == ""
        assert environment.sh("git ls-files").stdout == "src/a.py\n"
        assert environment.sh("git status --short").stdout == ""
    (work / "src/new.py").write_text("n")
    (work / "node_modules/n.js").write_text("n")
    assert [each.path for each in changes(found, work)] == ["src/new.py"]
