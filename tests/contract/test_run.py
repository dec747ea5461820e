"""Run, logs and kill as every environment has them; the fake knows these commands from a table."""

from __future__ import annotations

import pytest

from sandbox import FakeEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment

from .backends import folder_of
from .checks import closed, codes_of, done, refused, seen_until, so_far, with_more_time


@pytest.mark.needs("commands")
def test_output_and_exit_code(env: SandboxedEnvironment) -> None:
    envelope = env.run("printf 'hello\\n'")
    ran = done(envelope)
    assert (ran.exit_code, ran.signal, ran.output, ran.stdout, ran.stderr) == (0, None, "hello\n", "hello\n", "")
    assert (ran.output_bytes, ran.truncated, ran.spill_path, ran.left_running) == (6, False, None, 0)
    assert (ran.running, ran.oom_killed, ran.cwd) == (False, False, folder_of(env))
    assert ran.id.startswith("c")
    assert ran.to_text() == "hello\n[exit code 0]"
    assert codes_of(envelope) == []


@pytest.mark.needs("commands")
def test_a_command_that_fails_was_carried_out(env: SandboxedEnvironment) -> None:
    ran = done(env.run("printf out; printf err >&2; exit 3"))
    assert (ran.exit_code, ran.signal, ran.stdout, ran.stderr) == (3, None, "out", "err")
    assert sorted([ran.output[:3], ran.output[3:]]) == ["err", "out"]


@pytest.mark.needs("commands")
def test_a_signal(env: SandboxedEnvironment) -> None:
    ran = done(env.run("kill -9 $$"))
    assert (ran.exit_code, ran.signal, ran.oom_killed) == (None, "SIGKILL", False)
    assert ran.to_text() == "[no output; killed by SIGKILL]"


@pytest.mark.needs("commands")
def test_argv(env: SandboxedEnvironment) -> None:
    assert done(env.run(argv=["printf", "hello"])).output == "hello"


@pytest.mark.needs("commands")
@pytest.mark.parametrize("text", ["", "typed", b"\0\xff\n", "x" * 100_000])
def test_stdin(env: SandboxedEnvironment, text: str | bytes) -> None:
    ran = done(env.run("cat", stdin=text, keep_output_bytes=200_000))
    assert ran.output == (text if isinstance(text, str) else "\0\ufffd\n")


@pytest.mark.needs("commands")
def test_environment_of_one_run(env: SandboxedEnvironment) -> None:
    assert done(env.run('printf %s "$GREETING"', env={"GREETING": "hi there"})).output == "hi there"
    assert done(env.run('printf %s "$GREETING"')).output == ""


@pytest.mark.needs("commands")
def test_folder_of_one_run(env: SandboxedEnvironment, folder: str) -> None:
    assert done(env.run("pwd", cwd=folder)).output == f"{folder_of(env)}/{folder}\n"
    assert done(env.run("pwd")).output == f"{folder_of(env)}\n"


@pytest.mark.needs("commands")
def test_bytes_that_are_no_text(env: SandboxedEnvironment) -> None:
    answer = env.run("printf '\\377\\000\\nmore'")
    ran = done(answer)
    assert (ran.output, ran.output_bytes, ran.encoding_errors) == ("\ufffd\0\nmore", 7, True)
    assert (ran.stdout_bytes, ran.stderr_bytes) == (b"\xff\0\nmore", b"")
    assert codes_of(answer) == ["output_not_text"]
    assert "redirect it to a file" in answer.to_text()
    again = env.logs(ran.id)
    assert (done(again).encoding_errors, codes_of(again)) == (True, ["output_not_text"])
    rest = env.logs(ran.id, offset=1)
    assert (done(rest).encoding_errors, codes_of(rest)) == (False, [])
    assert not {"stdout_bytes", "stderr_bytes"} & set(answer.to_dict()["result"])
    assert not done(env.run("printf hello")).encoding_errors


@pytest.mark.needs("commands")
def test_timeout_keeps_what_was_printed(env: SandboxedEnvironment) -> None:
    failure = with_more_time(
        lambda seconds: refused(
            env.run("printf early; sleep 30", timeout_seconds=seconds), "timeout", f"within {seconds:g} seconds", "background=true",
            effects="unknown",
        ),
        lambda failure: so_far(failure).output == "early",
    )  # fmt: skip
    assert (so_far(failure).output, so_far(failure).signal, so_far(failure).exit_code) == ("early", "SIGKILL", None)
    assert not failure.retryable
    assert "early\n[killed by SIGKILL]" in failure.to_text()
    assert done(env.run("printf hello")).output == "hello"


@pytest.mark.needs("commands")
@pytest.mark.parametrize("keep", [0, 1, 10, 1000])
def test_long_output_is_cut_and_kept_in_a_file(env: SandboxedEnvironment, keep: int) -> None:
    envelope = env.run("head -c 5000 /dev/zero | tr '\\0' x", keep_output_bytes=keep)
    ran = done(envelope)
    mark = f"\n[... {5000 - keep} bytes cut; all of it in {ran.spill_path} ...]\n"
    assert ran.output == "x" * (keep - keep // 2) + mark + "x" * (keep // 2)
    assert (ran.output_bytes, ran.truncated, ran.spill_truncated) == (5000, True, False)
    assert codes_of(envelope) == ["output_cut"]
    assert ran.spill_path is not None
    assert done(env.read(ran.spill_path)).content == "x" * 5000
    assert len(done(env.search("xxx", ran.spill_path)).matches) == 1
    assert done(env.logs(ran.id, offset=4990)).content == "x" * 10


@pytest.mark.needs("commands")
def test_output_beyond_what_may_be_spilled(env: SandboxedEnvironment) -> None:
    size = env.limits.spill_bytes + 1000
    ran = done(env.run(f"head -c {size} /dev/zero | tr '\\0' x"))
    assert (ran.output_bytes, ran.truncated, ran.spill_truncated) == (size, True, True)
    assert f"The first part of the output is in {ran.spill_path}" in ran.to_text()
    assert "all of it" not in ran.output
    assert ran.spill_path is not None
    assert done(env.read(ran.spill_path)).size_bytes == env.limits.spill_bytes


@pytest.mark.needs("commands")
def test_background(env: SandboxedEnvironment) -> None:
    started = done(env.run("printf early; sleep 30", background=True))
    assert (started.running, started.exit_code) == (True, None)
    assert started.to_text() == f"[running in the background with id {started.id}]"
    logs = seen_until(lambda: done(env.logs(started.id)), lambda seen: bool(seen.content))
    assert (logs.content, logs.offset, logs.next_offset, logs.running) == ("early", 0, 5, True)
    onward = done(env.logs(started.id, offset=5))
    assert (onward.content, onward.next_offset) == ("", 5)
    killed = done(env.kill(started.id))
    assert killed.killed >= 1
    assert (killed.survivors, killed.already_ended) == (0, False)
    ended = done(env.logs(started.id, offset=2, max_bytes=2))
    assert (ended.content, ended.running, ended.signal) == ("rl", False, "SIGKILL")
    assert done(env.kill(started.id)).already_ended


@pytest.mark.needs("commands")
def test_logs_of_a_foreground_command(env: SandboxedEnvironment) -> None:
    ran = done(env.run("exit 7"))
    logs = done(env.logs(ran.id))
    assert (logs.running, logs.exit_code, logs.signal, logs.to_text()) == (False, 7, None, "[exit code 7; bytes 0-0 of 0]")
    assert done(env.kill(ran.id)).already_ended


@pytest.mark.needs("commands")
def test_unknown_ids(env: SandboxedEnvironment) -> None:
    runs = done(env.run("exec sleep 1000", background=True))
    refused(env.logs("c999999"), "unknown_command", "'c999999'", runs.id)
    refused(env.kill("nope"), "unknown_command", "'nope'", runs.id)
    done(env.kill(runs.id))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"command": "true\0"}, "NUL"),
        ({"command": "\ud800"}, "Unicode"),
        ({"command": "true", "env": {"A=B": "x"}}, "'A=B'"),
        ({"command": "true", "env": {"A": "\ud800"}}, "Unicode"),
        ({"command": "cat", "stdin": "\ud800"}, "stdin"),
    ],
)
def test_what_no_process_can_be_given(env: SandboxedEnvironment, options: dict[str, object], named: str) -> None:
    refused(env.run(**options), "invalid_arguments", named)  # type: ignore[arg-type]


def test_a_closed_environment_says_so() -> None:
    env = FakeEnvironment()
    env.close()
    closed(lambda: env.run("true"), "closed", "new environment")
    closed(lambda: env.upload(b"", "x"))
