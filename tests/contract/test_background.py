"""Commands nobody waits for: their end is noticed, they take signals; sessions can be ended."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.envelope import Envelope
from sandbox.environment.sandboxed import SandboxedEnvironment

from .checks import codes_of, done, refused, seen_until


@pytest.mark.needs("commands")
def test_an_ended_session_starts_anew(env: SandboxedEnvironment) -> None:
    done(env.run("true", session="ended"))
    assert done(env.end_session("ended")).existed
    assert not done(env.end_session("ended")).existed


@pytest.mark.needs("shell", "bash")
def test_ending_sessions_makes_room(env: SandboxedEnvironment) -> None:
    names = [f"room{n}" for n in range(40)]
    for name in names:
        assert done(env.run('printf %s "${V-none}"; V=1', session=name)).output == "none"
        assert done(env.run('printf %s "${V-none}"', session=name)).output == "1"
        assert done(env.end_session(name)).existed


@pytest.mark.needs("shell")
def test_the_end_of_a_command_is_told_once(env: SandboxedEnvironment, folder: str) -> None:
    started = done(env.run(f": worker; until [ -e {folder}/go ]; do sleep 0.01; done; exit 3", background=True))
    assert "command_ended" not in codes_of(env.read("/nonexistent"))
    envelope: Envelope[Any] = env.write(f"{folder}/go", "")
    if "command_ended" not in codes_of(envelope):
        envelope = seen_until(lambda: env.list(folder), lambda each: "command_ended" in codes_of(each))
    notice = next(n for n in envelope.notices if n.code == "command_ended")
    assert notice.message.startswith(f"The command {started.id} (: worker; until [ -e ")
    assert notice.message.endswith(") ended with exit code 3.")
    assert "command_ended" not in codes_of(env.list(folder))


@pytest.mark.needs("shell")
def test_who_asks_for_a_command_is_not_told_of_its_end_twice(env: SandboxedEnvironment) -> None:
    started = done(env.run("true", background=True))
    while True:
        envelope = env.logs(started.id)
        if not done(envelope).running:
            break
    assert codes_of(envelope) == []
    killed = done(env.run("sleep 600", background=True))
    done(env.kill(killed.id))
    assert codes_of(env.logs(killed.id)) == []


@pytest.mark.needs("shell")
def test_a_signal_reaches_the_whole_tree(env: SandboxedEnvironment, folder: str) -> None:
    script = "trap 'echo caught' USR1; (trap 'echo too' USR1; echo up; while :; do sleep 0.05; done) & while :; do sleep 0.05; done"
    started = done(env.run(script, background=True))
    while "up" not in done(env.logs(started.id)).content:
        pass
    sent = done(env.kill(started.id, "SIGUSR1"))
    assert (sent.signal, sent.killed) == ("SIGUSR1", 0)
    assert sent.signalled >= 2
    logs = seen_until(lambda: done(env.logs(started.id)), lambda seen: "caught" in seen.content and "too" in seen.content)
    assert ("caught" in logs.content, "too" in logs.content, logs.running) == (True, True, True)
    assert done(env.kill(started.id)).killed >= 2
    refused(env.kill(started.id, "SIGNONE"), "invalid_arguments", "SIGNONE")
