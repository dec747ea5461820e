"""processes: every command and what is below it, whatever names and numbers the sandbox comes up with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sandbox import FakeEnvironment, LocalEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.operations import ListedCommand, Process
from sandbox.testing import Ran

from .checks import done, refused, seen_until


def background(env: SandboxedEnvironment, command: str, **options: str) -> str:
    return done(env.run(command, background=True, session=None, **options)).id  # type: ignore[arg-type]


def look(env: SandboxedEnvironment, ident: str) -> ListedCommand:
    listed = done(env.processes(ident)).commands
    assert [command.id for command in listed] == [ident]
    return listed[0]


def look_until(env: SandboxedEnvironment, ident: str, so: Callable[[ListedCommand], bool]) -> ListedCommand:
    """The command, once it is as expected."""
    seen = seen_until(lambda: look(env, ident), so)
    assert so(seen), seen
    return seen


def named(command: ListedCommand, text: str) -> list[Process]:
    return [process for process in command.processes if text in process.command]


@pytest.mark.needs("commands")
def test_ended_commands_are_listed(env: SandboxedEnvironment) -> None:
    ran = done(env.run("printf hello", session="listed"))
    command = look(env, ran.id)
    assert (command.command, command.session, command.background) == ("printf hello", "listed", False)
    assert (command.running, command.exit_code, command.output_bytes) == (False, 0, 5)
    assert (command.process_count, command.processes) == (0, ())
    after = done(env.run("printf hello", session="listed"))
    everything = done(env.processes())
    ended = [c.id for c in everything.commands if not c.running and not c.process_count]
    assert ended[:2] == [after.id, ran.id], "the latest first"
    assert f"{ran.id} (exit code 0): printf hello" in everything.to_text()
    refused(env.processes("c0"), "unknown_command", "'c0'")


@pytest.mark.needs("shell", "python")
def test_a_tree(env: SandboxedEnvironment) -> None:
    threads = "import threading,time; [threading.Thread(target=time.sleep, args=(600,)).start() for _ in range(3)]"
    ident = background(env, f"(sleep 600 & sleep 601; true) & python3 -c '{threads}'")

    def stands(command: ListedCommand) -> bool:
        asleep = {p.command for p in command.processes if p.state == "sleeping"}
        return {"sleep 600", "sleep 601"} <= asleep and any(p.threads == 4 for p in command.processes)

    command = look_until(env, ident, stands)
    assert (command.running, command.background, command.process_count) == (True, True, len(command.processes))
    assert command.waiting_for is not None
    shell = command.processes[0]
    assert shell.parent == 0
    assert shell.command.startswith(("bash -c (sleep 600", "sh -c (sleep 600"))
    assert "gamebox" not in shell.command
    below = {p.pid for p in command.processes if p.parent == shell.pid}
    assert len(below) == 2
    first, second = (p for p in command.processes if p.command in ("sleep 600", "sleep 601"))
    assert first.parent == second.parent
    assert first.parent in below
    assert (first.state, first.threads, first.listens) == ("sleeping", 1, ())
    assert first.memory_bytes > 100_000
    assert 0 <= first.age_seconds < 60
    lines = done(env.processes(ident)).to_text().splitlines()
    assert lines[0].startswith(f"{ident} $ (sleep 600")
    assert any(line.startswith(f"      {first.pid} sleep 600  [sleeping") for line in lines)
    done(env.kill(ident))
    after = look(env, ident)
    assert (after.running, after.stop_reason, after.process_count) == (False, "killed", 0)


@pytest.mark.needs("shell")
def test_what_computes_shows_as_load(env: SandboxedEnvironment) -> None:
    ident = background(env, "while :; do :; done")
    look(env, ident)
    seen = look_until(env, ident, lambda c: bool(c.processes) and c.processes[0].cpu_percent > 1)
    assert seen.processes[0].cpu_percent < 150
    result = done(env.processes(ident))
    assert 0.2 <= result.sampled_seconds < 30
    assert result.commands[0].processes[0].cpu_seconds > 0
    done(env.kill(ident))


@pytest.mark.needs("shell", "python")
def test_ports(env: SandboxedEnvironment) -> None:
    program = (
        "import socket,time; t = socket.create_server(('127.0.0.1', 0)); u = socket.socket(type=socket.SOCK_DGRAM); "
        "u.bind(('127.0.0.1', 0)); x = socket.socket(socket.AF_UNIX); x.bind('\\0gamebox test %d' % t.getsockname()[1]); "
        "x.listen(); c = socket.create_connection(t.getsockname()); "
        "print(t.getsockname()[1], u.getsockname()[1], flush=True); time.sleep(600)"
    )
    ident = done(env.run(argv=["python3", "-c", program], background=True, session=None)).id
    ports = [int(word) for word in done(env.wait_for(id=ident, log=r"\d+ \d+")).line.split()]
    (process,) = look(env, ident).processes
    listens = {(p.protocol, p.port): p.address for p in process.listens}
    assert listens == {
        ("tcp", ports[0]): "127.0.0.1", ("udp", ports[1]): "127.0.0.1", ("unix", 0): f"@gamebox test {ports[0]}",
    }  # fmt: skip
    assert f"listens on tcp 127.0.0.1:{ports[0]}" in done(env.processes(ident)).to_text()
    done(env.kill(ident))


@pytest.mark.needs("shell")
def test_a_command_can_look_into_another(env: SandboxedEnvironment, folder: str) -> None:
    """As gdb -p, strace -p, lsof and pwdx do: the folder and the open files of a process are only for those who may trace it."""
    ident = background(env, "echo there; exec sleep 614", cwd=folder)
    done(env.wait_for(id=ident, log="there"))
    (process,) = look_until(env, ident, lambda command: bool(named(command, "sleep 614"))).processes
    seen = done(env.run(f"readlink /proc/{process.pid}/cwd; ls /proc/{process.pid}/fd", session=None))
    assert seen.exit_code == 0, seen.output
    first, *descriptors = seen.output.splitlines()
    assert first.endswith(f"/{folder}")
    assert {"0", "1", "2"} <= set(descriptors)
    done(env.kill(ident))


@pytest.mark.needs("shell")
def test_what_was_left_behind_stands_under_its_command(env: SandboxedEnvironment) -> None:
    ran = done(env.run("sleep 612 & (setsid sleep 613 &) ; exit 5", session=None))
    assert ran.left_running == 2
    programs = {"sleep 612", "sleep 613"}
    # The shell's children may become their programs when it is over already.
    command = seen_until(lambda: look(env, ran.id), lambda seen: {p.command for p in seen.processes} == programs)
    assert {p.command for p in command.processes} == programs
    assert (command.running, command.exit_code, command.process_count) == (False, 5, 2)
    assert all(p.parent == 0 for p in command.processes)
    assert "exit code 5, 2 processes left behind" in done(env.processes()).to_text()
    done(env.kill(ran.id))
    assert look(env, ran.id).process_count == 0


@pytest.mark.needs("shell")
def test_many_processes_are_counted_and_cut(env: SandboxedEnvironment) -> None:
    done(env.run("true"))  # of a sandbox with one command all processes are listed
    ident = background(env, "for n in $(seq 70); do sleep 600 & done; echo started; wait")
    done(env.wait_for(id=ident, log="started"))
    everything = done(env.processes())
    command = next(c for c in everything.commands if c.id == ident)
    assert command.process_count == 71
    assert len(command.processes) == 50
    assert f"and 21 more processes; see them with processes(id='{ident}')" in everything.to_text()
    assert len(look(env, ident).processes) == 71
    done(env.kill(ident))


@pytest.mark.needs("shell", "python")
def test_names_that_a_command_chose_itself(env: SandboxedEnvironment) -> None:
    program = (
        r"import ctypes,time; ctypes.CDLL(None).prctl(15, b'x) R 1\n\x1b[31m\xff'); "
        "print('named', flush=True); time.sleep(600)"
    )
    argv = ["python3", "-c", program, "\x1b[2J\n" + "x" * 5000]
    ident = done(env.run(argv=argv, background=True, session=None)).id
    done(env.wait_for(id=ident, log="named"))
    # It may still run between its line and its sleep.
    (process,) = look_until(env, ident, lambda c: [p.state for p in c.processes] == ["sleeping"]).processes
    assert process.name.startswith("x) R 1\n")
    assert len(process.command) <= 200
    text = done(env.processes(ident)).to_text()
    assert "\x1b" not in text
    assert len(text.splitlines()) < 8
    done(env.kill(ident))


@pytest.mark.needs("isolated")
def test_the_sandbox_as_a_whole(env: SandboxedEnvironment) -> None:
    seen = done(env.processes())
    assert seen.memory_limit_bytes == env.limits.memory_bytes
    assert seen.pids_limit == env.limits.pids
    assert seen.memory_bytes is not None
    assert seen.pids is not None
    assert 5 << 20 < seen.memory_bytes < env.limits.memory_bytes
    assert 2 < seen.pids < env.limits.pids
    assert f"of {env.limits.pids} processes and threads]" in seen.to_text()


def test_without_a_sandbox_nothing_is_bounded() -> None:
    with LocalEnvironment() as env:
        ran = done(env.run("sleep 600", wait_seconds=0.1))
        # The shell around the command is there before what it starts.
        seen = done(seen_until(env.processes, lambda listed: done(listed).commands[0].process_count == 2))
        assert (seen.memory_bytes, seen.pids, seen.pids_limit) == (None, None, None)
        assert [(c.id, c.session, c.background, c.process_count) for c in seen.commands] == [
            (ran.id, "default", False, 2)
        ]
        assert "in the session default" in seen.to_text()


def test_a_fake_lists_its_commands() -> None:
    env = FakeEnvironment(commands={"ls": "a\n", "serve": Ran(seconds=9)})
    done(env.run("ls"))
    server = done(env.run("serve", background=True)).id
    listed = done(env.processes()).commands
    assert [(c.id, c.command, c.running, c.background) for c in listed] == [
        (server, "serve", True, True),
        ("c1", "ls", False, False),
    ]
    refused(env.processes("c9"), "unknown_command")


@pytest.mark.needs("shell")
def test_a_pid_is_no_id(env: SandboxedEnvironment) -> None:
    """s37: the hint said neither that ids are not pids, nor which command is which."""
    ident = done(env.run("echo $$; exec sleep 60", background=True)).id
    try:
        pid = done(env.wait_for(id=ident, log=r"(\d+)")).groups[0]
        refused(env.kill(str(pid)), "unknown_command", f"{pid} is a pid, and it belongs to {ident}")
        refused(env.kill("c999"), "unknown_command", "are not pids", f"{ident} (echo $$; exec sleep 60)")
    finally:
        done(env.kill(ident))


@pytest.mark.needs("shell")
def test_the_last_commands_are_remembered(env: SandboxedEnvironment) -> None:
    goes_on = background(env, "exec sleep 60")
    try:
        first, *_, last = [done(env.run("true", session=None)).id for _ in range(70)]
        refused(env.logs(first), "unknown_command", f"'{first}'")
        assert not done(env.logs(last)).running
        assert done(env.logs(goes_on)).running
    finally:
        done(env.kill(goes_on))
