"""devcontainer.json as strangers write it: what is followed, what is refused, and what is only named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent.job.repository_image import devcontainer_note
from agent.repo.devcontainer import MOST_BYTES, find_devcontainers, parse_jsonc, read_devcontainer
from sandbox.errors import ErrorCode, SandboxError

MAIN = ".devcontainer/devcontainer.json"


def put(repo: Path, content: Any, path: str = MAIN) -> Path:
    file = repo / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return repo


def refused(repo: Path) -> str:
    with pytest.raises(SandboxError) as caught:
        read_devcontainer(repo)
    assert caught.value.code is ErrorCode.workspace_invalid
    assert "--image" in caught.value.hint
    return caught.value.message


def test_comments_and_trailing_commas() -> None:
    text = """// first
    { /* a "quoted" one */ "a": ["x // no comment", 1 , /* here */ ], "b": {"c": "\\"/*\\"", }, // end
    }"""
    assert parse_jsonc(text) == {"a": ["x // no comment", 1], "b": {"c": '"/*"'}}


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "' + '\\"' * 60_000,
        "/*" * 100_000,
        "//" * 100_000,
        '"' * 200_001,
        "," * 200_000,
        "[" * 100_000,
        '{"a":' * 100_000,
        "{" + '"a":1,' * 30_000,
        "9" * 200_000,
        "NaN",
        '{"a" "b"}',
        "",
    ],
)
def test_bombs_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of json or of ours
        parse_jsonc(text)


def test_the_plain_keys(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "name": "x",
            "image": "registry.example.com:5000/team/dev:2",
            "containerEnv": {"MODE": "dev", "TOKEN": "${localEnv:TOKEN}", "A B": "1", "GAMEBOX_X": "1"},
            "remoteEnv": {"LEVEL": "2", "N": 3},
            "onCreateCommand": "npm ci",
            "postCreateCommand": ["pip", "install", "-r", "a file"],
            "workspaceFolder": "/workspaces/x",
            "remoteUser": "vscode",
            "features": {},
            "mounts": ["source=/,target=/host,type=bind"],
            "runArgs": ["--privileged"],
        },
    )
    found = read_devcontainer(tmp_path)
    assert found is not None
    assert (found.path, found.image, found.dockerfile) == (MAIN, "registry.example.com:5000/team/dev:2", "")
    assert found.variables == {"MODE": "dev", "LEVEL": "2"}
    assert found.command == "npm ci && pip install -r 'a file'"
    said = " ".join(found.ignored)
    for name in ("containerEnv.TOKEN", "containerEnv.A B", "GAMEBOX_X", "remoteEnv.N", "workspaceFolder", "remoteUser"):
        assert name in said
    assert {"mounts", "runArgs", "features"} <= set(found.ignored)
    assert "name" not in found.ignored


def test_a_dockerfile_with_its_context(tmp_path: Path) -> None:
    arguments = {"V": "1", "H": "${localEnv:HOME}"}
    put(tmp_path, {"build": {"dockerfile": "Dockerfile", "context": "..", "args": arguments, "target": "dev"}})
    (tmp_path / ".devcontainer/Dockerfile").write_text("FROM gamebox/base\n")
    found = read_devcontainer(tmp_path)
    assert found is not None
    assert (found.dockerfile, found.context, found.arguments) == (".devcontainer/Dockerfile", "", {"V": "1"})
    assert set(found.ignored) == {"build.args.H", "build.target"}


@pytest.mark.parametrize(
    "build",
    [
        {"dockerfile": "../../Dockerfile"},
        {"dockerfile": "/etc/passwd"},
        {"dockerfile": "../.git/config"},
        {"dockerfile": "../.GIT./config"},
        {"dockerfile": "${localWorkspaceFolder}/Dockerfile"},
        {"dockerfile": "missing"},
        {"dockerfile": "link"},
        {"dockerfile": "pipe"},
        {"dockerfile": "Dockerfile", "context": "../.."},
        {"dockerfile": "Dockerfile", "context": "folder-link"},
        {"dockerfile": "Dockerfile", "context": "ignored"},
        {"dockerfile": "folder-link/Dockerfile"},
        {"dockerfile": ["Dockerfile"]},
        {"dockerfile": "Dockerfile", "args": {"A": 1}},
        {"dockerfile": "Dockerfile", "args": {f"A{n}": "" for n in range(100)}},
        "Dockerfile",
    ],
)
def test_what_leads_out_is_refused(tmp_path: Path, build: Any) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "Dockerfile").write_text("FROM secret\n")
    repo = put(tmp_path / "repo", {"build": build})
    folder = repo / ".devcontainer"
    (folder / "Dockerfile").write_text("FROM gamebox/base\n")
    (folder / "link").symlink_to(outside / "Dockerfile")
    (folder / "folder-link").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    (folder / "ignored").mkdir()
    (folder / "ignored/.dockerignore").symlink_to("/dev/zero")
    (repo / ".git").mkdir()
    (repo / ".git/config").write_text("")
    refused(repo)


@pytest.mark.parametrize(
    "image",
    ["../x", "-v", "a b", "gamebox-build/0123:n-x", "gamebox.invalid/snapshot:1", "sha256:" + "a" * 64, "x" * 20_000, 7, "A"],
)
def test_names_that_no_repository_may_choose(tmp_path: Path, image: Any) -> None:
    refused(put(tmp_path, {"image": image}))


def test_none_of_several_folders_is_chosen(tmp_path: Path) -> None:
    for name in "bac":
        put(tmp_path, {"image": name}, f".devcontainer/{name}/devcontainer.json")
    message = refused(tmp_path)
    assert "3 files for --devcontainer: .devcontainer/a/devcontainer.json, .devcontainer/b/devcontainer.json and .dev" in message
    note = devcontainer_note(tmp_path, {})
    assert ".devcontainer/c/devcontainer.json, which are not used; --image" in note
    for number in range(200):
        put(tmp_path, {"image": "x"}, f".devcontainer/{'n' * 150}{number}/devcontainer.json")
    assert " more." in refused(tmp_path)
    assert len(refused(tmp_path)) < 2000
    put(tmp_path, {"image": "one"})
    found = read_devcontainer(tmp_path)
    assert found is not None
    assert found.image == "one"


def test_links_pipes_and_huge_files_do_not_count(tmp_path: Path) -> None:
    outside = tmp_path / "secret.json"
    outside.write_text('{"image": "secret"}')
    repo = tmp_path / "repo"
    (repo / ".devcontainer").mkdir(parents=True)
    (repo / MAIN).symlink_to(outside)
    os.mkfifo(repo / ".devcontainer.json")
    assert find_devcontainers(repo) == ()
    assert read_devcontainer(repo) is None
    put(repo, {"image": "second"}, ".devcontainer/a/devcontainer.json")
    (repo / ".devcontainer/b").symlink_to(repo / ".devcontainer/a")
    found = read_devcontainer(repo)
    assert found is not None
    assert found.image == "second"
    (repo / MAIN).unlink()
    put(repo, " " * (MOST_BYTES + 1))
    assert "256 KiB" in refused(repo)
    put(repo, "[" * 1000)
    assert "levels deep" in refused(repo)
    put(repo, "[]")
    assert "not an object" in refused(repo)
    (repo / MAIN).write_bytes(b"\xff\xfe{}")
    assert "not JSON" in refused(repo)


def test_what_is_shown_has_no_invisible_text(tmp_path: Path) -> None:
    put(tmp_path, {"image": "a", "x\u202ey\n": 1})
    found = read_devcontainer(tmp_path)
    assert found is not None
    assert not any("\u202e" in each or "\n" in each for each in found.ignored)
