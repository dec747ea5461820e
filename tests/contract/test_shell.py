"""What needs a real shell and real processes: sessions, killing, concurrency, faults of starting."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox.envelope import Envelope
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.operations import RunResult
from tests.integration.observing import within

from .backends import SHELL, folder_of
from .checks import codes_of, done, refused, with_more_time

pytestmark = pytest.mark.needs(SHELL)
_sleeps = itertools.count(1)
Run = Callable[..., Envelope[RunResult]]
# Over a command's deadline, this much may pass before its answer is there.
PROMPT = 0.25


@pytest.fixture
def run(env: SandboxedEnvironment) -> Run:
    """Runs in a session of the test's own."""

    def in_session(command: str | None = None, **options: object) -> Envelope[RunResult]:
        return env.run(command, **{"session": "mine", **options})  # type: ignore[arg-type]

    return in_session


# --- sessions --------------------------------------------------------------------------------------------------------------


@pytest.mark.needs("bash")
def test_folder_and_variables_carry_over(run: Run, env: SandboxedEnvironment, folder: str) -> None:
    ran = done(run(f"cd {folder}; export KEEP1='a \"b\" $c\n\\d é'; KEEP2=plain; keep3() {{ KEEP4=$KEEP2; }}"))
    assert ran.cwd == f"{folder_of(env)}/{folder}"
    assert done(run('pwd; keep3; printf %s "$KEEP1,$KEEP4"')).output == f"{ran.cwd}\na \"b\" $c\n\\d é,plain"
    assert done(run("pwd", session=None)).output == f"{folder_of(env)}\n"
    assert done(run('printf %s "$KEEP1"', session=None)).output == ""
    done(run("unset KEEP1 KEEP2 KEEP4; unset -f keep3; cd .."))
    assert done(run('printf %s "${KEEP1-unset}"')).output == "unset"


@pytest.mark.needs("bash")
@pytest.mark.parametrize("function", ["", "keep3() { echo kept; }"])
def test_a_plain_command_loses_nothing(run: Run, env: SandboxedEnvironment, folder: str, function: str) -> None:
    done(run(f"export KEEP1=one; KEEP2=two; {function}"))
    assert done(run(f"cd {folder} && ls -a | cat > /dev/null", env={"KEEP1": "given"})).cwd == f"{folder_of(env)}/{folder}"
    done(run("cd .. ; false", cwd=folder))
    after = done(run('pwd; printf %s "$KEEP1,$KEEP2"; type keep3'))
    assert after.output.startswith(f"{folder_of(env)}/{folder}\none,two")
    assert after.exit_code == (0 if function else 1)


def test_what_is_given_for_one_run_is_not_kept(run: Run, env: SandboxedEnvironment, folder: str) -> None:
    done(run("export KEEP1=mine"))
    assert done(run('printf %s "$KEEP1"; export KEEP3=new', env={"KEEP1": "given", "KEEP2": "x"}, cwd=folder)).output == "given"
    assert done(run('printf %s "$KEEP1,${KEEP2-},$KEEP3"; pwd')).output == f"mine,,new{folder_of(env)}\n"


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("exit 5", 5),
        ("set -e; false; echo never", 1),
        ("if then fi", None),
        ("echo 'open", None),
        ("set -u; echo $KEEP_UNDEFINED", None),
        ("exec true", 0),
        ("return 3 2>/dev/null || true", None),
        ("trap 'exit 9' EXIT; exit 4", 9),
        ("kill -9 $$", None),
        ("kill -15 $$", None),
        ("exec 0<&- 1>&- 2>&-", 0),
        ("""[ -z "$BASH_VERSION" ] || trap 'echo traced' DEBUG""", 0),
    ],
)
def test_no_command_loses_its_session(run: Run, folder: str, command: str, exit_code: int | None) -> None:
    done(run(f"cd {folder}; export KEEP1=kept"))
    ran = done(run(command))
    if exit_code is not None:
        assert ran.exit_code == exit_code
    after = done(run('printf %s "$KEEP1:"; pwd'))
    assert after.output.startswith("kept:")
    assert after.output.endswith(f"/{folder}\n")
    assert after.exit_code == 0


def test_state_is_kept_when_the_command_exits_itself(run: Run, folder: str) -> None:
    done(run(f"export KEEP1=before; cd {folder}; exit 3"))
    assert done(run('printf %s "$KEEP1"; pwd')).output.startswith("before")


def test_a_timeout_does_not_lose_the_session(run: Run, folder: str) -> None:
    done(run(f"cd {folder}; export KEEP1=kept"))
    refused(run("cd /; export KEEP1=lost; sleep 30", timeout_seconds=0.2), "timeout", effects="unknown")
    assert done(run('printf %s "$KEEP1"; pwd')).output.startswith("kept")


def test_a_folder_that_is_gone(run: Run, env: SandboxedEnvironment, folder: str) -> None:
    done(run(f"mkdir {folder}/gone; cd {folder}/gone"))
    done(env.delete(f"{folder}/gone", recursive=True))
    refused(run("pwd"), "working_directory_invalid", f"{folder}/gone", "The session is back in the workspace")
    assert done(run("pwd")).output == f"{folder_of(env)}\n"


# --- starting --------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_started(run: Run, env: SandboxedEnvironment, folder: str) -> None:
    done(env.write(f"{folder}/data", "x"))
    refused(run(argv=["no-such-program"]), "program_not_found", "no-such-program")
    refused(run(argv=["./data"], cwd=folder), "program_not_executable", "chmod +x")
    refused(run("true", cwd=f"{folder}/none"), "working_directory_invalid", f"{folder}/none", "to see what is there")
    refused(run("true", cwd=f"{folder}/data"), "working_directory_invalid")
    refused(run(argv=["true", "x" * 200_000]), "arguments_too_long", "with write")
    assert done(run("no-such-program")).exit_code == 127
    assert done(run(argv=["printf", "%s|", "a b", "", "*"])).output == "a b||*|"


# --- ending ----------------------------------------------------------------------------------------------------------------

EVADERS = {
    "ignores signals": "trap '' TERM INT HUP; SLEEP & wait",
    "setsid": "setsid SLEEP & SLEEP",
    "double fork": "( ( setsid nohup SLEEP >/dev/null 2>&1 & ) & ); SLEEP",
    "stopped": "SLEEP & kill -STOP $!; SLEEP",
    "no environment": "env -i setsid SLEEP & SLEEP",
    "closed descriptors": "setsid SLEEP <&- >&- 2>&- & SLEEP",
}


class Sleep:
    """A command that nothing else on this machine runs, so that it can be counted: a local guest sees every process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.command = f"sleep {os.getpid() * 1000 + next(_sleeps)}"

    def count(self) -> int:
        """How many of it there are; the brackets keep the counting itself from being counted."""
        pattern = f"{self.command[:-1]}[{self.command[-1]}]"
        seen = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '{pattern}' | wc -l"
        return int(done(self._run(seen, session=None)).output)


@pytest.fixture
def sleep(run: Run) -> Sleep:
    return Sleep(run)


@pytest.mark.parametrize("evader", EVADERS)
def test_a_timeout_leaves_nothing_running(run: Run, sleep: Sleep, evader: str) -> None:
    command = EVADERS[evader].replace("SLEEP", sleep.command)
    envelope, _ = within(0.3 + PROMPT, lambda: run(command, timeout_seconds=0.3))
    refused(envelope, "timeout", "Nothing it started is left running", effects="unknown")
    assert sleep.count() == 0


def test_what_is_left_running_is_told_and_can_be_killed(run: Run, sleep: Sleep, env: SandboxedEnvironment) -> None:
    envelope = run(f"{sleep.command} & echo started")
    ran = done(envelope)
    assert (ran.output, ran.exit_code, ran.left_running) == ("started\n", 0, 1)
    assert codes_of(envelope) == ["left_running"]
    assert f"logs(id='{ran.id}')" in envelope.to_text()
    assert done(env.logs(ran.id)).left_running == 1
    assert sleep.count() == 1
    killed = done(env.kill(ran.id))
    assert (killed.killed, killed.survivors) == (1, 0)
    assert done(env.logs(ran.id)).left_running == 0
    assert sleep.count() == 0


def test_what_is_left_running_goes_on_printing(run: Run, env: SandboxedEnvironment) -> None:
    ran = done(run("echo now; (sleep 0.2; echo later) &"))
    deadline = time.monotonic() + 120
    while "later" not in (content := done(env.logs(ran.id)).content) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert content == "now\nlater\n"


def test_kill_ends_a_foreground_command(run: Run, sleep: Sleep, env: SandboxedEnvironment) -> None:
    with ThreadPoolExecutor(1) as pool:
        before = int(done(run("true")).id[1:])
        running = pool.submit(run, f"echo here; {sleep.command}")
        ident = f"c{before + 1}"
        while not env.logs(ident).ok:
            time.sleep(0.01)
        done(env.kill(ident))
        ran = done(running.result(timeout=60))
    assert (ran.signal, ran.exit_code) == ("SIGKILL", None)


# --- output ----------------------------------------------------------------------------------------------------------------


def test_streams_stay_apart_and_in_order(env: SandboxedEnvironment, folder: str) -> None:
    step = "until [ -e $w$i ]; do sleep 0.01; done"  # the order of what waits in two pipes is known to nobody
    command = f"for i in 1 2 3; do w=o; echo o$i; {step}; w=e; echo e$i >&2; {step}; done"

    def go_on(_: str, text: str) -> None:
        done(env.write(f"{folder}/{text.strip()}", ""))

    ran = done(env.run(command, cwd=folder, on_output=go_on))
    assert ran.output == "o1\ne1\no2\ne2\no3\ne3\n"
    assert (ran.stdout, ran.stderr) == ("o1\no2\no3\n", "e1\ne2\ne3\n")


def test_a_character_that_is_written_in_two_parts_stays_whole(run: Run) -> None:
    ran = done(run("printf '\\303'; sleep 0.05; printf '\\251'"))
    assert ran.output == "é"


def test_very_much_output(run: Run, env: SandboxedEnvironment) -> None:
    ran = done(run("yes 0123456789abcdef | head -c 30000000; echo end"))
    assert (ran.output_bytes, ran.spill_truncated) == (30_000_004, True)
    assert ran.output.endswith("end\n")
    assert len(ran.output) < env.limits.keep_output_bytes + 200


def test_logs_go_on_where_they_ended(run: Run, env: SandboxedEnvironment) -> None:
    ran = done(run("seq 1 20000", keep_output_bytes=100))
    parts: list[str] = []
    at = 0
    while at < ran.output_bytes:
        logs = done(env.logs(ran.id, offset=at, max_bytes=10_000))
        assert logs.offset == at
        parts.append(logs.content)
        at = logs.next_offset
    assert "".join(parts) == "".join(f"{n}\n" for n in range(1, 20001))
    assert done(env.search("^19999$", str(ran.spill_path))).matches[0].line == 19999


# --- many at once ----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_runs_of_one_session_queue_and_nothing_else_waits(run: Run, env: SandboxedEnvironment, folder: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(run, f"touch {folder}/begun; while [ ! -e {folder}/go ]; do sleep 0.01; done; echo first")
        while not env.read(f"{folder}/begun").ok:
            time.sleep(0.01)
        second = pool.submit(run, f"test -e {folder}/go && echo second", timeout_seconds=60)
        done(env.write(f"{folder}/a", "1"))
        assert done(env.run("echo free", session=None)).output == "free\n"
        assert done(env.run("echo other", session="other")).output == "other\n"
        background = done(run("echo behind", background=True))
        assert background.running
        assert done(env.search("1", f"{folder}/a")).matches
        time.sleep(2.5)
        assert not first.done()
        assert not second.done()
        done(env.write(f"{folder}/go", ""))
        assert done(first.result(timeout=60)).output == "first\n"
        envelope = second.result(timeout=60)
        assert done(envelope).output == "second\n"
        assert "waited_for_session" in [notice.code for notice in envelope.notices]


@pytest.mark.exhaustive
def test_a_run_gives_up_in_the_queue_after_its_timeout(env: SandboxedEnvironment, folder: str) -> None:
    holder = done(env.run("cat", session="held", wait_seconds=0.1, timeout_seconds=60)).id
    began = time.monotonic()
    failure = refused(
        env.run(f"touch {folder}/ran", session="held", timeout_seconds=0.5), "timeout", holder, "not started", "'held'"
    )
    assert 0.4 < time.monotonic() - began < 60
    assert (failure.effects, failure.next_tool) == ("none", "kill")
    assert "session=null" in str(failure.hint)
    done(env.kill(holder))

    def waited(seconds: float) -> tuple[str, list[str]]:
        holder = done(env.run("cat", session="held", wait_seconds=0.1, timeout_seconds=60)).id
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(env.run, "sleep 0.6; echo later", session="held", timeout_seconds=20)
            time.sleep(seconds)
            done(env.kill(holder))
            envelope = later.result(timeout=60)
        assert done(envelope).output == "later\n"
        return holder, [notice.message for notice in envelope.notices if notice.code == "waited_for_session"]

    holder, notices = with_more_time(waited, lambda answer: bool(answer[1]), 1.5)
    (notice,) = notices
    assert f"for {holder} in the session 'held'" in notice
    refused(env.read(f"{folder}/ran"), "path_not_found")
    assert not [n for n in env.run("true", session="held").notices if n.code == "waited_for_session"]


def test_forty_callers(env: SandboxedEnvironment, folder: str) -> None:
    barrier = threading.Barrier(40)

    def work(number: int) -> bool:
        barrier.wait()
        done(env.write(f"{folder}/{number}", str(number)))
        ran = done(env.run(f"cat {folder}/{number}", session=None))
        return ran.output == done(env.read(f"{folder}/{number}")).content == str(number)

    with ThreadPoolExecutor(40) as pool:
        assert all(pool.map(work, range(40)))


def test_too_many_background_commands(env: SandboxedEnvironment) -> None:
    started = [done(env.run("sleep 60", background=True)).id for _ in range(env.limits.background_commands)]
    try:
        failure = refused(env.run("sleep 60", background=True), "too_many_commands", f"There are already {len(started)}")
        assert failure.next_tool == "kill"
    finally:
        for ident in started:
            done(env.kill(ident))
    done(env.kill(done(env.run("sleep 60", background=True)).id))


def test_the_shell_counts_the_lines_of_the_command_from_one(run: Run) -> None:
    said = done(run("echo a\nno-such-command-here")).stderr
    assert "line 2:" in said or "sh: 2:" in said


@pytest.mark.parametrize("command", ["cd {folder}; export X=1; exec true", "cd {folder} && kill -9 $$", "X=1; exec 1>&2 true"])
def test_a_shell_that_was_replaced_says_that_its_folder_is_lost(env: SandboxedEnvironment, folder: str, command: str) -> None:
    """A14: folder and variables were lost after exec, and neither that run nor the next said so."""
    answer = env.run(command.format(folder=folder), session=f"replaced {folder}")
    (notice,) = [n for n in answer.notices if n.code == "session_not_kept"]
    assert "exec replaced the shell" in notice.message
    assert done(env.run("pwd", session=f"replaced {folder}")).output.strip() in notice.message


@pytest.mark.parametrize("command", ["exec true", "cd .; exit 3", "kill -9 $$", "X=1 exec true"])
def test_a_shell_of_which_nothing_is_lost_says_nothing(env: SandboxedEnvironment, folder: str, command: str) -> None:
    answer = env.run(command, session=f"kept {folder}")
    assert not [n for n in answer.notices if n.code == "session_not_kept"]


@pytest.mark.needs("debian")
@pytest.mark.parametrize("keeps", ["", "; X=1"])  # a plain command leaves its folder alone
def test_a_folder_that_is_too_deep_to_start_in_is_not_kept(env: SandboxedEnvironment, folder: str, keeps: str) -> None:
    """No later command of the session could start there, and each failed with an io_error."""
    session, name = f"deep {folder}{keeps}", "d" * 200
    start = done(env.run(f"cd {folder}", session=session)).cwd
    steps = " && ".join([f"mkdir {name} && cd {name}"] * 21)
    answer = env.run(f"{steps}{keeps}", session=session)
    (notice,) = [n for n in answer.notices if n.code == "session_not_kept"]
    assert f"The session is in {start}, not in the folder where this command ended" in notice.message
    after = done(env.run("echo $PWD $X", session=session))
    assert after.output.split() == [start, *(["1"] if keeps else [])]
    done(env.run(f"rm -rf {name}", session=session))


@pytest.mark.needs("debian")
def test_a_folder_to_start_in_that_is_nearly_there(env: SandboxedEnvironment, folder: str) -> None:
    """The near miss and the missing part are named for a cwd as for a path."""
    done(env.write(f"{folder}/src/app.py", ""))
    refused(env.run("true", cwd=f"{folder}/scr"), "working_directory_invalid", f"Did you mean '{folder}/src'?")
    refused(env.run("true", cwd=f"{folder}/src/app.py"), "working_directory_invalid", "is a file, not a folder")
    refused(env.run("true", cwd="/usr/libb/x"), "working_directory_invalid", "there is no '/usr/libb'", "'/usr/lib'")
