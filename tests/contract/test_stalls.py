"""A5: a command that did not end in time says what it was doing, and the hint fits that."""

from __future__ import annotations

import pytest

from sandbox.environment.sandboxed import SandboxedEnvironment

from .checks import by_programs, codes_of, done, refused, seen_until, with_more_time

pytestmark = pytest.mark.needs("shell")
SERVER = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 0)); s.accept()'"
CLIENT = """python3 -c '
import socket
server = socket.socketpair()
server[0].recv(1)'"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("command", "options", "cause", "hint"),
    by_programs(
        ("read -r answer", {"pty": True}, "it waited for input (", "answer with send"),
        ("while ! read -r answer; do :; done", {}, "kept reading an input that has ended (", "printf 'y\\n' |"),
        ("while :; do :; done", {}, "it was computing (", "loop that does not end"),
        (SERVER, {}, "it was serving port ", "background=true, then use wait_for(port="),
        (CLIENT, {}, "it waited on a socket (python3", "bound on the wait"),
        (f"{SERVER} & sleep 0.3; {CLIENT}", {}, "it waited on a socket (python3", "bound on the wait"),
        ("sleep 60", {}, "it was sleeping (sleep", "use wait_for"),
        (
            "exec 9>lock; flock 9; sleep 60 & flock lock true",
            {},
            "it waited for a lock (flock",
            "End what holds the lock",
        ),
    ),
)
def test_a_timeout_says_what_the_command_was_doing(
    env: SandboxedEnvironment, folder: str, command: str, options: dict[str, bool], cause: str, hint: str
) -> None:
    for seconds in (1, 4, 16):  # on a busy machine Python may take longer to start
        answer = env.run(command, timeout_seconds=seconds, cwd=folder, session=None, **options)  # type: ignore[arg-type]
        failure = refused(answer, "timeout", f"did not end within {seconds} second", effects="unknown")
        if cause in failure.error:
            break
    assert cause in failure.error
    assert hint in failure.hint
    assert len(failure.error + failure.hint) < 350


def test_the_notice_of_a_background_command_says_it_too(env: SandboxedEnvironment) -> None:
    def noticed(seconds: float) -> str:
        started = env.run("sleep 60", background=True, timeout_seconds=seconds)
        if not started.ok:
            return started.to_text()
        ident = done(started).id
        answer = seen_until(lambda: env.run("sleep 0.1", session=None), lambda each: "command_ended" in codes_of(each))
        message = next(n.message for n in answer.notices if n.code == "command_ended" and ident in n.message)
        assert f"did not end within {seconds:g} seconds" in message
        return message

    assert "seconds; it was sleeping (sleep" in with_more_time(noticed, lambda message: "it was sleeping" in message)
