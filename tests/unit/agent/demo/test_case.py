"""The demo's case and script fit together, and the source arrives only as the pinned bytes (real pip, no network)."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import re
import socket
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from agent.demo.case import CASE, Case, cached_wheel, fetch_source
from agent.demo.script import DURATION, REGRESSION_TEST, SCRIPT, TESTS
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations import OPERATIONS


class Think(BaseModel):
    """The arguments of the tool think."""

    model_config = ConfigDict(extra="forbid")
    thought: str


class Finish(BaseModel):
    """The arguments of the tool finish."""

    model_config = ConfigDict(extra="forbid")
    summary: str


TOOLS: dict[str, type[BaseModel]] = {**OPERATIONS, "think": Think, "finish": Finish}


@pytest.mark.parametrize("step", SCRIPT, ids=[f"{i}-{s['tool']}" for i, s in enumerate(SCRIPT, 1)])
def test_each_step_is_a_call_the_tools_accept(step: dict[str, Any]) -> None:
    assert set(step) == {"thought", "tool", "args"}
    assert step["thought"].strip()
    TOOLS[step["tool"]].model_validate(step["args"])


def test_the_script_reproduces_before_it_edits_and_proves_before_it_finishes() -> None:
    tools = [step["tool"] for step in SCRIPT]
    commands = [step["args"].get("command") for step in SCRIPT]
    edits = [i for i, tool in enumerate(tools) if tool == "edit"]
    reproduced = [i for i, command in enumerate(commands) if command == CASE.reproduce_command]
    assert reproduced[0] < edits[0]
    assert reproduced[-1] > edits[-1]
    assert commands.index(CASE.test_command) > edits[-1]
    assert [i for i, tool in enumerate(tools) if tool == "finish"] == [len(SCRIPT) - 1]


def test_edits_change_the_code_and_its_tests_and_what_they_write_is_python() -> None:
    edits = [step["args"] for step in SCRIPT if step["tool"] == "edit"]
    assert {edit["path"] for edit in edits} == {DURATION, TESTS}
    for edit in edits:
        assert edit["new_text"].endswith(edit["old_text"])  # each edit adds before its anchor and loses nothing
    ast.parse("class T:\n" + REGRESSION_TEST)


def test_the_case_is_consistent() -> None:
    assert CASE.wheel.startswith(f"{CASE.name}-{CASE.version}-")
    assert CASE.wheel.endswith("-none-any.whl")
    assert re.fullmatch(r"[0-9a-f]{64}", CASE.wheel_sha256)
    assert CASE.fixed_in != CASE.version
    assert all(citation.startswith("https://") for citation in CASE.citations)
    assert CASE.version in CASE.title


def test_the_task_tells_symptoms_and_not_the_fix() -> None:
    added = [line.strip() for s in SCRIPT if s["tool"] == "edit" for line in s["args"]["new_text"].splitlines()]
    assert not [line for line in added if line and line in CASE.task]
    assert Path(DURATION).name not in CASE.task
    for symptom in ("PT1H30S", "P1Y15D"):
        assert symptom in CASE.task
        assert symptom in CASE.reproduce_command


@pytest.mark.parametrize(
    ("seconds", "status"), [("3630 if 'H30S' in t else 380 * 86400 + 3600.5 * ('T' in t)", 0), ("1", 1)]
)
def test_the_reproduce_command_tells_right_from_wrong(tmp_path: Path, seconds: str, status: int) -> None:
    (tmp_path / "aniso8601.py").write_text(
        f"import datetime\ndef parse_duration(t):\n    return datetime.timedelta(seconds={seconds})\n"
    )
    done = subprocess.run(
        ["bash", "-c", CASE.reproduce_command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A case of its own with a folder of wheels as the only index pip may ask, and an empty cache."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "gamebox_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/__init__.py", "answer = 42\n")
        archive.writestr(
            "gamebox_tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: gamebox-tiny\nVersion: 1.0\n"
        )
        archive.writestr(
            "gamebox_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("gamebox_tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return dataclasses.replace(
        CASE,
        name="gamebox-tiny",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
    )


def test_fetch_unpacks_the_wheel_and_needs_no_index_the_second_time(
    tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    folder = fetch_source(tmp_path / "first", said.append, tiny)
    assert folder == tmp_path / "first" / "gamebox-tiny-1.0"
    assert (folder / "tiny" / "__init__.py").read_text() == "answer = 42\n"
    assert [line.split()[0] for line in said] == ["fetching", "unpacking"]
    assert [path.name for path in cached_wheel(tiny).parent.iterdir()] == [tiny.wheel]  # nothing else is left behind

    monkeypatch.delenv("PIP_FIND_LINKS")
    said.clear()
    assert (fetch_source(tmp_path / "second", said.append, tiny) / "tiny").is_dir()
    assert [line.split()[0] for line in said] == ["unpacking"]


def test_a_damaged_cache_is_fetched_again(tiny: Case, tmp_path: Path) -> None:
    cached_wheel(tiny).parent.mkdir(parents=True)
    cached_wheel(tiny).write_bytes(b"half a wheel")
    assert (fetch_source(tmp_path / "target", print, tiny) / "tiny").is_dir()


@pytest.mark.exhaustive
def test_other_bytes_than_the_pinned_ones_are_refused(tiny: Case, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="other bytes") as caught:
        fetch_source(tmp_path / "target", print, dataclasses.replace(tiny, wheel_sha256="0" * 64))
    assert caught.value.code is ErrorCode.setup_failed
    assert not (tmp_path / "target").exists()
    assert not cached_wheel(tiny).exists()


def test_an_index_without_the_library_is_a_clear_error(
    tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(
        SandboxError, match=r"gamebox-tiny 1\.0 could not be fetched: Could not find a version"
    ) as caught:
        fetch_source(tmp_path / "target", print, tiny)
    assert caught.value.code is ErrorCode.setup_failed
    assert str(cached_wheel(tiny)) in caught.value.hint  # a way out without network
    assert not (tmp_path / "target").exists()


@pytest.mark.exhaustive
def test_an_index_out_of_reach_is_called_that(tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:  # bound but not listening: every connection to it is refused
        bound.bind(("127.0.0.1", 0))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{bound.getsockname()[1]}/simple")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")  # no further index from the machine's own settings
        with pytest.raises(SandboxError, match="could not be reached") as caught:
            fetch_source(tmp_path / "target", print, tiny)
    assert caught.value.code is ErrorCode.setup_failed
    assert caught.value.retryable


def test_a_folder_that_is_there_is_never_written_into(tiny: Case, tmp_path: Path) -> None:
    (tmp_path / "gamebox-tiny-1.0").mkdir()
    with pytest.raises(SandboxError, match="already there") as caught:
        fetch_source(tmp_path, print, tiny)
    assert caught.value.code is ErrorCode.path_exists
