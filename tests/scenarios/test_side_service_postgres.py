"""A client tool under test in one sandbox, a real PostgreSQL in another, in suites as users of the pytest plugin write them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import docker
import pytest

from sandbox.docker.engine.client import connect
from tests.integration.made_images import postgres_image

pytest_plugins = ["pytester"]
# Making the image takes a minute, and twice that on a busy machine.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
EXAMPLE = Path(__file__).parent / "client_under_test"


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    return connect()


@pytest.fixture
def example(pytester: pytest.Pytester, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEDGER_IMAGE", postgres_image(client))
    shutil.copytree(EXAMPLE, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return pytester.path


def test_the_example_passes_on_two_workers_with_a_server_each(
    pytester: pytest.Pytester, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", str(example / "seen"))
    (example / "test_servers.py").write_text("""
import os, time
import pytest

@pytest.mark.parametrize("n", range(4))
def test_servers(sandbox, n):
    ran = sandbox.run("PGPASSWORD=secret psql -h db -U postgres -qAtc 'select pg_postmaster_start_time()'").unwrap()
    assert ran.exit_code == 0
    with open(os.environ["SEEN"], "a") as seen:
        print(os.environ["PYTEST_XDIST_WORKER"], ran.stdout.strip().replace(" ", "_"), file=seen)
    time.sleep(0.5)
""")
    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=8)
    pairs = {tuple(line.split()) for line in (example / "seen").read_text().splitlines()}
    assert len({worker for worker, _ in pairs}) == len({server for _, server in pairs}) == len(pairs) == 2


def test_the_post_mortem_of_a_failing_test_holds_both_sides_logs(pytester: pytest.Pytester, example: Path) -> None:
    (example / "test_ledger.py").write_text("""
def test_before(sandbox):
    sandbox.run("python3 ledger.py add of-an-earlier-test 1")

def test_that_fails(sandbox):
    ran = sandbox.run("python3 ledger.py init; python3 ledger.py add ann 1; python3 ledger.py add ann 2").unwrap()
    assert ran.exit_code == 0
""")
    result = pytester.runpytest_subprocess("-n", "1", "--sandbox-artifacts", "artifacts", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines([
        "*sandbox post-mortem (sandbox)*",
        "operations of this test (1):",
        "*: run python3 ledger.py init; *-> exit code 3",
        "    | ledger: duplicate key value violates unique constraint *",
        "side services:",
        "  db (gamebox-test/postgres:*) running",
        "    | *ERROR:  duplicate key value violates unique constraint *",
        "    | *STATEMENT:  INSERT INTO accounts VALUES ('ann', 2)",
    ])  # fmt: skip
    assert "of-an-earlier-test" not in result.stdout.str()
    [saved] = (example / "artifacts").iterdir()
    [service] = json.loads(saved.read_text())["services"]
    assert (service["name"], service["state"]) == ("db", "running")
    assert "duplicate key value" in service["output"]
    assert "ready to accept connections" not in service["output"]  # from before this test


def test_a_server_that_does_not_start_fails_with_its_log(pytester: pytest.Pytester, example: Path) -> None:
    (example / "test_ledger.py").write_text("""
import os
import pytest
IMAGE = os.environ['LEDGER_IMAGE']

@pytest.mark.sandbox(services={"second": {"image": IMAGE, "port": 5432, "env": {"PGDATA": "/nowhere"}}})
def test_that_has_no_server(sandbox):
    pass
""")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([
        "The sandbox could not be started: The side service 'second' did not become ready: *ended with exit code *",
        "*could not access directory \"/nowhere\"*",
    ])  # fmt: skip


def test_the_page_shows_what_is_tested() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/testing.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```py\n# (\w+\.py)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in shown] == ["conftest.py", "test_ledger.py"]
    for name, text in shown:
        file = (EXAMPLE / name).read_text(encoding="utf-8")
        for part in text.strip().split("\n\n\n"):
            assert part in file
