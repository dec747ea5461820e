"""What keeps the state of a sandbox's files is made when it is first used, and knows how they were at the start."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from sandbox import DockerEnvironment, ErrorCode, SandboxError
from sandbox.state.methods import FileStateMethods


class Made:
    """Stands for a ``FileState``; notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.history = self

    def begin(self, empty: bool) -> None:
        self.asked.append(f"begin {empty}")

    def close(self) -> None:
        self.asked.append("close")


class Files(FileStateMethods):
    def __init__(self) -> None:
        self.made: list[Made] = []
        self.gate: threading.Barrier | None = None

    def _make_state(self) -> Any:
        if self.gate is not None:
            self.gate.wait(30)
        self.made.append(Made())
        return self.made[-1]


def test_a_start_with_files_is_looked_at_at_once() -> None:
    files = Files()
    files._begin_state(empty=False)
    assert [each.asked for each in files.made] == [["begin False"]]
    assert files.state is files.made[0]  # type: ignore[comparison-overlap]


def test_a_start_without_files_is_known_to_a_state_that_is_made_later() -> None:
    files = Files()
    files._begin_state(empty=True)
    assert files.made == []
    assert files.state is files.state
    assert [each.asked for each in files.made] == [["begin True"]]


def test_a_state_that_was_used_before_the_start_learns_of_it() -> None:
    files = Files()
    assert files.state.asked == []  # type: ignore[attr-defined]
    files._begin_state(empty=True)
    assert [each.asked for each in files.made] == [["begin True"]]


@pytest.mark.parametrize("used", [False, True])
def test_an_end_makes_no_state(used: bool) -> None:
    files = Files()
    if used:
        files.state  # noqa: B018 - it is made
    files._close_state()
    assert [each.asked for each in files.made] == ([["close"]] if used else [])


def test_two_threads_that_use_it_first_have_the_same_one() -> None:
    files, seen = Files(), []
    files.gate = threading.Barrier(2)
    threads = [threading.Thread(target=lambda: seen.append(files.state)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(files.made) == 2
    assert seen[0] is seen[1]


def test_before_the_start_and_after_the_end_nothing_is_known() -> None:
    env = DockerEnvironment()
    for closed in (False, True):
        if closed:
            env.close()
        with pytest.raises(SandboxError) as raised:
            env.changes()
        assert raised.value.code is ErrorCode.sandbox_closed


@pytest.mark.engine
def test_a_single_command_does_not_load_it() -> None:
    code = (
        "import sys\n"
        "from sandbox.docker.environment import DockerEnvironment\n"
        "with DockerEnvironment() as env:\n"
        "    env.write('a', '1').unwrap()\n"
        "    assert 'sandbox.state.file_state' not in sys.modules\n"
        "    assert 'tenacity' not in sys.modules\n"
        "    changed = env.changes().unwrap().changes\n"
        "    assert [(each.path, each.change) for each in changed] == [('a', 'created')], changed\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
