"""The pytest plugin as its users meet it: suites of their own, run by a pytest of their own, against the real engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.engine
EXAMPLE = Path(__file__).parent / "tested_tool"

FAILING = '''
import pytest
from sandbox.ready import wait_for_log

def test_that_fails(sandbox):
    sandbox.write("config.ini", "[a]")
    server = sandbox.run("""python3 -u -c 'import time; print("server is up"); time.sleep(600)'""", background=True).unwrap()
    wait_for_log(sandbox, server.id, "is up")
    ran = sandbox.run("echo to-stdout; echo to-stderr >&2; mv old.txt new.txt; exit 41", env={"TOKEN": "hunter2"}).unwrap()
    assert ran.exit_code == 0

@pytest.mark.sandbox(limits={"memory_bytes": 128 << 20})
def test_that_eats(sandbox):
    ran = sandbox.run("python3 -c 'x = bytearray(1 << 30)'").unwrap()
    assert not ran.oom_killed
'''


@pytest.fixture
def example(pytester: pytest.Pytester) -> Path:
    shutil.copytree(EXAMPLE, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return pytester.path


def test_the_example_passes(pytester: pytest.Pytester, example: Path) -> None:
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)
    assert not (example / "tool/notes.jsonl").exists()


def test_two_workers_have_a_shared_sandbox_each(
    pytester: pytest.Pytester, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example / "test_shared.py").write_text("""
import os, time
import pytest

@pytest.mark.parametrize("n", range(6))
def test_shared(sandbox_session, sandbox, n):
    assert sandbox.container_id != sandbox_session.container_id
    assert sandbox.run("echo $JOT_FILE").unwrap().stdout == "notes.jsonl\\n"
    with open(os.environ["SEEN"], "a") as seen:
        print(os.environ["PYTEST_XDIST_WORKER"], sandbox_session.container_id, file=seen)
    time.sleep(0.3)
""")
    seen = example / "seen"
    monkeypatch.setenv("SEEN", str(seen))
    result = pytester.runpytest_subprocess("-n", "2")
    result.assert_outcomes(passed=12)
    pairs = {tuple(line.split()) for line in seen.read_text().splitlines()}
    assert len(pairs) == 2
    assert len({worker for worker, _ in pairs}) == len({container for _, container in pairs}) == 2


def test_local_runs_without_a_container_and_never_on_the_folder_itself(
    pytester: pytest.Pytester, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    result = pytester.runpytest_subprocess("--sandbox-local", "-rs")
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["*the test asks for limits.memory_bytes=*, which only a container has"])
    assert not (example / "tool/notes.jsonl").exists()
    refused = pytester.runpytest_subprocess("-k", "is_kept")
    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines(["The sandbox could not be started: *nonexistent.sock*"])


def test_a_failure_is_reported_with_its_post_mortem(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING)
    result = pytester.runpytest_subprocess("--sandbox-artifacts", "deep/artifacts")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines([
        "*sandbox post-mortem (sandbox)*",
        "sandbox: *gamebox/base*",
        "operations of this test (4):",
        "*: write config.ini -> ok",
        "*: run python3 -u -c * -> in the background as c*",
        "*: run echo to-stdout; * exit 41 -> exit code 41",
        "    | to-stdout",
        "    | to-stderr",
        "started in the background:",
        "  c* running: python3 -u *",
        "    | server is up",
        "processes (*):",
        "  *python3 -u -c *",
        "file changes in the workspace (1):",
        "  created config.ini (3 bytes)",
        "saved as *deep/artifacts*.json",
        "*sandbox post-mortem (sandbox)*",
        "OUT OF MEMORY: [[]1] python3 *",
        "*: run python3 * -> exit code 137, out of memory",
    ])  # fmt: skip
    assert "hunter2" not in result.stdout.str().split("post-mortem", 1)[1].split("test_that_eats", 1)[0]
    saved = {file.name: json.loads(file.read_text()) for file in (pytester.path / "deep/artifacts").iterdir()}
    assert len(saved) == 2
    first = next(found for found in saved.values() if found["test"].endswith("test_that_fails"))
    assert first["phase"] == "call"
    assert first["entries"][3]["exit_code"] == 41
    assert first["entries"][3]["output"].split() == [
        "to-stdout", "to-stderr", "mv:", "cannot", "stat", "'old.txt':", "No", "such", "file", "or", "directory",
    ]  # fmt: skip
    assert first["files"] == {"created": ["config.ini"], "modified": [], "deleted": [], "problem": None}
    assert "hunter2" not in json.dumps(first)


def test_the_shared_sandbox_tells_only_of_the_test_that_failed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import pytest

@pytest.fixture
def prepared(sandbox_session):
    sandbox_session.run("echo prepared >prepared")
    raise RuntimeError("no luck")

def test_first(sandbox_session):
    sandbox_session.write("of-the-first", "1")
    assert sandbox_session.run("echo the-secret-of-the-first").ok

def test_second(sandbox_session):
    sandbox_session.write("of-the-first", "2")
    sandbox_session.run("echo of-the-second")
    assert False

def test_third(prepared):
    pass
""")
    result = pytester.runpytest_subprocess("-n", "1")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines([
        "*ERROR at setup of test_third*",
        "operations of this test (1, 4 earlier in this sandbox):",
        "  created prepared (9 bytes)",
        "*post-mortem (sandbox_session)*",
        "operations of this test (2, 2 earlier in this sandbox):",
        "file changes in the workspace (1):",
        "  modified of-the-first (1 bytes)",
    ])  # fmt: skip
    assert "the-secret-of-the-first" not in result.stdout.str()


def test_a_sandbox_that_died_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import subprocess

def test_that_loses_it(sandbox):
    from sandbox.docker.engine.client import connect
    connect().api.kill(sandbox.container_id)
    sandbox.run("true").unwrap()
""")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "THE SANDBOX IS GONE: *killed from outside*",
        "*run true -> sandbox_unavailable: *",
    ])  # fmt: skip


def test_a_sandbox_that_does_not_answer_does_not_hold_up_the_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
def test_that_pauses_it(sandbox):
    from sandbox.docker.engine.client import connect
    connect().api.pause(sandbox.container_id)
    assert False
""")
    result = pytester.runpytest_subprocess(timeout=60)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["THE SANDBOX IS GONE: The sandbox is paused*"])


def test_the_marker_comes_before_the_command_line_the_project_and_the_ini(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nsandbox_image = of-the-ini-file\n")
    pytester.makepyfile("""
import pytest

def test_plain(sandbox): pass

@pytest.mark.sandbox(image="of-the-marker")
def test_marked(sandbox): pass
""")
    by_ini = pytester.runpytest_subprocess()
    by_ini.stdout.fnmatch_lines(["*image 'of-the-ini-file' is not on*", "*image 'of-the-marker' is not on*"])
    by_hand = pytester.runpytest_subprocess("--sandbox-image", "of-the-command-line")
    by_hand.stdout.fnmatch_lines(["*image 'of-the-command-line' is not on*", "*image 'of-the-marker' is not on*"])
    pytester.makeconftest("""
import pytest

@pytest.fixture(scope="session")
def sandbox_options():
    return {"image": "of-the-project"}
""")
    by_project = pytester.runpytest_subprocess()
    by_project.stdout.fnmatch_lines(["*image 'of-the-project' is not on*", "*image 'of-the-marker' is not on*"])
    by_hand = pytester.runpytest_subprocess("--sandbox-image", "of-the-command-line", "-k", "plain")
    by_hand.stdout.fnmatch_lines(["*image 'of-the-command-line' is not on*"])
