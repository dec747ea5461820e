"""The program that starts commands of a LocalEnvironment: compiled once, kept where only this user can write."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandbox import LocalEnvironment, SandboxError
from sandbox.docker.images import runtime
from sandbox.errors import ErrorCode
from sandbox.local import launcher

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Linux alone")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the program, which is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gamebox" / "launcher"


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_it(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was compiled")

    monkeypatch.setattr(subprocess, "run", compile_it)


def test_it_is_compiled_once_for_this_user(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = launcher.find_launcher()
    assert path.parent == cache
    assert (path.stat().st_mode & 0o777, cache.stat().st_mode & 0o777) == (0o700, 0o700)
    assert os.listdir(cache) == [path.name]
    forbid(monkeypatch)
    assert launcher.find_launcher() == path


def test_a_relative_cache_is_not_looked_up_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert launcher.find_launcher().is_relative_to(tmp_path / "home/.cache/gamebox")


@pytest.mark.exhaustive
def test_another_source_is_another_program(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = launcher.find_launcher()
    source = tmp_path / "launcher.c"
    source.write_bytes(launcher.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(launcher, "SOURCE", source)
    assert launcher.find_launcher() != first


@pytest.mark.exhaustive
def test_a_program_that_others_can_write_is_made_again(cache: Path) -> None:
    path = launcher.find_launcher()
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(0o777)
    assert launcher.find_launcher() == path
    assert path.read_bytes()[:4] == b"\x7fELF"
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)
    launcher.find_launcher()
    assert not path.is_symlink()


@pytest.mark.parametrize("way", ["mode", "owner", "link"])
def test_a_folder_of_somebody_else_is_refused(cache: Path, tmp_path: Path, way: str) -> None:
    if way == "owner" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    cache.parent.mkdir()
    if way == "link":
        cache.symlink_to(tmp_path)
    else:
        cache.mkdir()
        cache.chmod(0o777 if way == "mode" else 0o700)
    if way == "owner":
        os.chown(cache, 4321, 4321)
    with pytest.raises(SandboxError, match="cannot be trusted") as raised:
        launcher.find_launcher()
    assert raised.value.code is ErrorCode.setup_failed


def test_without_a_compiler_and_an_engine_the_error_says_what_to_install(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "COMPILERS", ("no-such-compiler",))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(SandboxError, match="no C compiler was found") as raised:
        LocalEnvironment().start()
    assert "apt-get install gcc libc6-dev" in raised.value.hint
    assert os.listdir(cache) == []


def test_what_the_compiler_says_is_in_the_error(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "launcher.c"
    source.write_text("#error of a test\n")
    monkeypatch.setattr(launcher, "SOURCE", source)
    monkeypatch.setattr(runtime, "read_launcher", lambda: None)
    with pytest.raises(SandboxError, match="#error of a test"):
        launcher.find_launcher()


def test_the_program_of_another_machine_is_not_taken(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "COMPILERS", ())
    monkeypatch.setattr(runtime, "read_launcher", lambda: b"\x7fELF" + bytes(14) + b"\xff\xff" + bytes(40))
    with pytest.raises(SandboxError, match="no C compiler was found"):
        launcher.find_launcher()


@pytest.mark.engine
def test_without_a_compiler_it_is_taken_from_the_runtime_image(
    cache: Path, monkeypatch: pytest.MonkeyPatch, env: object
) -> None:
    monkeypatch.setattr(launcher, "COMPILERS", ())
    with LocalEnvironment() as local:
        assert local.run("echo on").unwrap().output == "on\n"
    assert launcher.find_launcher().read_bytes() == runtime.read_launcher()
