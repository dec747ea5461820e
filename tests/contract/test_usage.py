"""What commands use, what they may use, and what is left, on every environment."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandbox import AsyncEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.testing import FakeEnvironment, Ran

from .checks import codes_of, done, refused, so_far, with_more_time


def test_usage(env: SandboxedEnvironment) -> None:
    usage = done(env.usage())
    sections = env.describe()
    assert list(sections)[-1] == "left"
    names = [line.partition(": ")[0] for line in usage.to_text().splitlines()]
    assert [line.partition(": ")[0] for line in sections["left"].splitlines()] == names
    assert names[-1] == "running"
    for place in usage.places:
        assert 0 <= place.free_bytes <= place.size_bytes


def test_usage_for_asyncio(env: SandboxedEnvironment) -> None:
    assert done(asyncio.run(AsyncEnvironment(env).usage())).uptime_seconds >= 0


@pytest.mark.needs("shell")
def test_what_runs_is_in_it(env: SandboxedEnvironment) -> None:
    started = done(env.run("sleep 600", background=True)).id
    assert started in done(env.usage()).running
    assert env.describe()["left"].splitlines()[-1].endswith(started)
    done(env.kill(started))
    assert started not in done(env.usage()).running


@pytest.mark.needs("shell")
def test_processor_time_is_told_and_held(env: SandboxedEnvironment) -> None:
    ran = done(env.run("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"))
    assert ran.cpu_seconds is not None
    assert 0.02 < ran.cpu_seconds < 20
    assert (ran.max_rss_bytes or 0) > 1 << 18
    failure = refused(
        env.run("echo begun; while :; do :; done", cpu_seconds=0.5, timeout_seconds=60),
        "cpu_limit", "the limit is 0.5 s", "Nothing it started is left running.", "This limit cannot be raised from here",
        effects="unknown",
    )  # fmt: skip
    assert so_far(failure).output == "begun\n"
    assert so_far(failure).signal == "SIGKILL"
    assert 0.5 <= so_far(failure).cpu_seconds < 5
    late = with_more_time(
        lambda seconds: refused(env.run("while :; do :; done", timeout_seconds=seconds), "timeout", effects="unknown"),
        lambda failure: so_far(failure).cpu_seconds > 0, 0.5,
    )  # fmt: skip
    assert so_far(late).cpu_seconds > 0, "however little of a busy machine it had"
    size = so_far(late).max_rss_bytes
    assert size is None or size > 1 << 18  # the answer did not wait for the runner's report


@pytest.mark.needs("shell")
def test_the_end_of_a_background_command_says_why(env: SandboxedEnvironment, folder: str) -> None:
    started = done(env.run("while :; do :; done", background=True, cpu_seconds=0.2)).id
    deadline = time.monotonic() + 120
    while "command_ended" not in codes_of(envelope := env.list(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    notice = next(n for n in envelope.notices if n.code == "command_ended")
    assert notice.message == f"The command {started} (while :; do :; done) was killed by SIGKILL (its processor time was used up)."


def test_a_negative_limit_is_none(env: SandboxedEnvironment) -> None:
    for wrong in (0, -1, float("nan")):
        refused(env.run("true", cpu_seconds=wrong), "invalid_arguments", "cpu_seconds")


def test_a_fake_command_uses_what_its_test_says() -> None:
    fake = FakeEnvironment(commands={"make": Ran(stdout="so far\n", cpu_seconds=3.0)})
    assert done(fake.run("make")).cpu_seconds == 3.0
    assert done(fake.run("make", cpu_seconds=3.0)).exit_code == 0
    failure = refused(fake.run("make", cpu_seconds=2), "cpu_limit", "the limit is 2 s", effects="unknown")
    assert so_far(failure).output == "so far\n"
