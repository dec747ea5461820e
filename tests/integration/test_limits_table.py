"""Every limit of the table, hit for real: the code or notice it answers with, the value in it, and the next step."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.envelope import Envelope, Notice
from sandbox.errors import ErrorCode
from tests.contract.checks import codes_of, seen_until, with_more_time

from .observing import eventually, of_commands, within

pytestmark = pytest.mark.engine

MIB = 1 << 20
LIMITS = Limits(
    memory_bytes=512 * MIB, disk="memory", cpus=2.0, pids=96, open_files=300, file_bytes=20 * MIB, spill_bytes=4 * MIB,
    read_bytes=64 << 10, write_bytes=1 * MIB, transfer_bytes=8 * MIB, timeout_seconds=20.0, max_timeout_seconds=60.0,
    cpu_seconds_per_command=30.0, background_commands=3, sessions=3, concurrent_actions=4, lifetime_seconds=3600.0,
)  # fmt: skip
SPIN = "while :; do :; done"


@pytest.fixture(scope="module")
def small() -> Iterator[DockerEnvironment]:
    """A sandbox whose every limit is low."""
    with DockerEnvironment(limits=LIMITS) as env:
        yield env


def said(answer: Envelope[Any], code: str) -> Notice:
    """The one notice of that code."""
    found = [notice for notice in answer.notices if notice.code == code]
    assert len(found) == 1, answer.to_text()[-500:]
    assert found[0].hint
    return found[0]


def refused(answer: Envelope[Any], code: ErrorCode, *words: str) -> Any:
    assert not answer.ok, answer.to_text()[:500]
    assert answer.code is code, answer.to_text()[:500]
    assert answer.hint
    for word in words:
        assert word in f"{answer.error} {answer.hint}", answer.to_text()[:500]
    return answer.result


def test_wall_time(small: DockerEnvironment) -> None:
    result = with_more_time(
        lambda seconds: refused(
            small.run("echo so far; sleep 60", timeout_seconds=seconds), ErrorCode.timeout, f"{seconds:g} seconds",
            f"above {seconds:g}",
        ),
        lambda result: bool(result.output), 0.5,
    )  # fmt: skip
    assert result.output == "so far\n"
    refused(small.run("true", timeout_seconds=61), ErrorCode.invalid_arguments, "at most 60")


TREES = {
    "one process": SPIN,
    "children that are waited for": "while :; do sh -c 'i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done'; done",
    "orphans": f"(setsid sh -c '{SPIN}' &) ; (setsid sh -c '{SPIN}' &) ; sleep 100",
    "a thread": 'exec python3 -c "import threading\nthreading.Thread(target=lambda: exec(\'while 1: pass\')).start()"',
    "one after the other": 'f() { i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; }; while :; do (f); done',
    "children that nobody waits for": (
        "exec python3 -c 'import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True:\n"
        "  if not os.fork():\n    t = time.process_time()\n    while time.process_time() - t < 0.02: pass\n    os._exit(0)\n"
        "  time.sleep(0.02)'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_cpu_time_of_the_whole_tree(small: DockerEnvironment, name: str) -> None:
    for _ in range(3):  # a guest that is late looks late, and two processors go on until then: another try, with the same bounds
        before = small.usage().unwrap().cpu_seconds or 0.0
        result = refused(
            small.run(f"echo so far; {TREES[name]}", cpu_seconds=0.6, timeout_seconds=55),
            ErrorCode.cpu_limit, "the limit is 0.6 s", "Nothing it started is left", "This limit cannot be raised from here",
        )  # fmt: skip
        used = (small.usage().unwrap().cpu_seconds or 0.0) - before  # by the kernel's own count
        if result.cpu_seconds < 1.5 and used < 2.5:
            break
    assert result.output == "so far\n"
    assert 0.6 <= result.cpu_seconds < 1.5
    assert used < 2.5
    assert of_commands(small) == []


def test_cpu_time_has_a_limit_for_all(small: DockerEnvironment) -> None:
    refused(small.run("true", cpu_seconds=31), ErrorCode.invalid_arguments, "at most 30")
    assert small.run("sleep 1.5", cpu_seconds=0.5).unwrap().exit_code == 0  # sleeping uses none


def test_cpu_time_of_what_was_left_behind(small: DockerEnvironment) -> None:
    ran = small.run(f"mkfifo go; sh -c 'read x < go; {SPIN}' & echo left", cpu_seconds=0.6).unwrap()
    assert ran.left_running == 1
    small.run("echo > go").unwrap()
    deadline = time.monotonic() + 120
    while of_commands(small) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert of_commands(small) == []
    notice = said(small.read("/nonexistent"), "cpu_limit")
    assert ran.id in notice.message
    small.run("rm go").unwrap()
    background = small.run(SPIN, background=True, cpu_seconds=0.6).unwrap().id
    while small.logs(background).unwrap().running and time.monotonic() < deadline:
        time.sleep(0.05)
    logs = small.logs(background).unwrap()
    assert (logs.running, logs.signal) == (False, "SIGKILL")
    assert logs.cpu_seconds is not None
    assert logs.cpu_seconds >= 0.6


def test_what_a_command_used_is_in_its_result(small: DockerEnvironment) -> None:
    source = "import time\nx = bytearray(100 << 20)\nt = time.process_time()\nwhile time.process_time() - t < 0.3: pass"
    ran = small.run(f"python3 -c '{source}' | cat").unwrap()
    assert ran.cpu_seconds is not None
    assert ran.max_rss_bytes is not None
    assert 0.3 <= ran.cpu_seconds < 3.0
    assert 100 * MIB <= ran.max_rss_bytes < 160 * MIB
    again = small.run("true").unwrap()  # the same runner serves it: what was before is not counted
    assert again.cpu_seconds is not None
    assert again.cpu_seconds < 0.3
    assert (again.max_rss_bytes or 0) < 60 * MIB


# Of a child of a shell, the guest knows the size only if it came to look: with 400 MiB it waits for that.
HOG = """import os, time
kept = []
while True:
  kept.append(bytearray(4 << 20))
  while len(kept) == 100 and not os.path.exists("go"): time.sleep(0.01)"""


def is_large(env: DockerEnvironment) -> bool:
    """Whether one of the processes of commands has more than 300 MiB."""
    commands = env.processes().unwrap().commands
    return any(process.memory_bytes > 300 * MIB for command in commands for process in command.processes)


@pytest.mark.parametrize("shell", [True, False])
def test_out_of_memory_names_who_it_was(small: DockerEnvironment, shell: bool) -> None:
    by_shell = {"command": f"python3 -c '{HOG}'; echo it said $?"}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(small.execute, "run", by_shell if shell else {"argv": ["python3", "-c", HOG]})
        for _ in range(2):  # the guest looks at least once between two lists
            assert eventually(lambda: is_large(small))
        small.write("go", "").unwrap()
        answer = running.result()
    small.run("rm go", session=None).unwrap()
    victim = answer.unwrap().oom_victim
    assert victim is not None
    assert victim.program == "python3"
    assert victim.rss_bytes is not None
    assert 300 * MIB < victim.rss_bytes <= 512 * MIB
    notice = said(answer, "out_of_memory")
    assert f"python3 (pid {victim.pid}) had " in notice.message
    assert "512.0 MiB" in notice.message
    if shell:
        assert answer.unwrap().output.endswith("it said 137\n")
        assert not answer.unwrap().oom_killed  # the command itself went on
    else:
        assert answer.unwrap().oom_killed
    assert small.run("echo alive").unwrap().output == "alive\n"


def test_processes(small: DockerEnvironment) -> None:
    answer = small.run("for i in $(seq 150); do sleep 100 & done; echo over", timeout_seconds=5)
    notice = said(answer, "too_many_processes")
    assert "96 processes" in notice.message
    deadline = time.monotonic() + 120
    while of_commands(small) and time.monotonic() < deadline:
        time.sleep(0.05)
        if answer.result is not None:
            small.kill(answer.result.id)
    assert codes_of(small.run("true")) == []


def test_open_files(small: DockerEnvironment) -> None:
    answer = small.run("python3 -c 'kept = [open(\"/dev/null\") for _ in range(400)]'")
    assert answer.unwrap().exit_code == 1
    assert "300 files open" in said(answer, "too_many_open_files").message


@pytest.mark.parametrize(
    "command",
    [
        "head -c 30M /dev/zero > /workspace/large",
        "exec head -c 30M /dev/zero > /workspace/large",
        "python3 -c 'open(\"large\", \"wb\").write(bytes(30 << 20))'",
    ],
)
def test_file_size(small: DockerEnvironment, command: str) -> None:
    answer = small.run(command)
    assert answer.unwrap().exit_code != 0
    assert "at most 20.0 MiB" in said(answer, "file_too_large").message
    assert small.run("stat -c %s large; rm large").unwrap().output == f"{20 * MIB}\n"


def test_disk_and_memory_are_told_before_they_are_full(small: DockerEnvironment) -> None:
    size = LIMITS.workspace_bytes // MIB
    fill = f"for i in $(seq {size * 95 // 100 // 4}); do head -c 4M /dev/zero > full$i || exit; done"
    answer = small.run(fill, timeout_seconds=30)
    assert "/workspace is nearly full" in said(answer, "disk_nearly_full").message
    assert codes_of(small.run("true")) == []  # told once
    full = small.run("head -c 19M /dev/zero > more")
    assert "No space left" in full.unwrap().output
    refused(small.write("more still", "x" * MIB), ErrorCode.no_space, "delete what you made")
    left = small.describe()["left"]
    assert "/workspace: " in left
    usage = small.usage().unwrap()
    size = LIMITS.memory_bytes * 92 // 100 - (usage.memory_used_bytes or 0)
    source = f"import time; x = bytearray({size}); print(1, flush=True); time.sleep(60)"
    hog = small.run(f"exec python3 -c '{source}'", background=True)
    small.wait_for(id=hog.unwrap().id, log="1", timeout_seconds=30).unwrap()
    seen = [hog, small.run("true", session=None)]
    pressed = [n for answer in seen for n in answer.notices if n.code == "memory_nearly_full"]
    assert len(pressed) == 1
    assert "of 512.0 MiB of memory are used" in pressed[0].message
    small.kill(hog.unwrap().id).unwrap()
    small.run("rm -f full* more").unwrap()
    again = small.run(fill, timeout_seconds=30)  # it was better meanwhile
    said(again, "disk_nearly_full")
    small.run("rm -f full*").unwrap()


def test_a_disk_that_a_command_in_the_background_filled_is_told(small: DockerEnvironment) -> None:
    fill = f"head -c {LIMITS.workspace_bytes * 95 // 100 // MIB}M /dev/zero | split -b 4M - full"
    filling = small.run(fill, background=True).unwrap()
    assert small.wait_for(id=filling.id, exit=True, timeout_seconds=30).ok
    said(small.run("true"), "disk_nearly_full")
    small.run("rm -f full*").unwrap()


def test_a_disk_that_was_filled_at_once_is_told_once_at_the_latest_by_the_next_answer() -> None:
    """A short command with fallocate: there was so much room just before that no look was due. A longer one tells itself."""
    with DockerEnvironment(limits=Limits(disk_bytes=4 << 30), track_changes=False) as env:
        for _ in range(5):
            env.run("true").unwrap()
            filled = env.run("fallocate -l 980M a; fallocate -l 980M b")
            told = [code for answer in (filled, env.run("true"), env.run("true")) for code in codes_of(answer)]
            assert told == ["disk_nearly_full"]
            env.run("rm a b").unwrap()


def test_reading_and_writing(small: DockerEnvironment) -> None:
    refused(small.write("large", "x" * (MIB + 1)), ErrorCode.file_too_large, "1.0 MiB")
    small.write("file", "x" * MIB).unwrap()
    refused(small.edit("file", "x" * 10, "y" * (MIB + 1)), ErrorCode.file_too_large, "1.0 MiB", "sed")
    for max_bytes in (None, (64 << 10) + 1):
        read = small.read("file", max_bytes=max_bytes).unwrap()
        assert read.truncated
        assert len(read.content) <= 64 << 10


def test_transfers(small: DockerEnvironment, tmp_path: Path) -> None:
    refused(small.upload(bytes(8 * MIB + 1), "large"), ErrorCode.file_too_large, str(8 * MIB))
    (tmp_path / "large").write_bytes(bytes(9 * MIB))
    refused(small.upload(tmp_path, "folder"), ErrorCode.file_too_large, "8.0 MiB")
    small.run("head -c 9M /dev/zero > large").unwrap()
    refused(small.download("large"), ErrorCode.file_too_large)
    small.run("rm -rf large folder").unwrap()


def test_output(small: DockerEnvironment) -> None:
    answer = small.run("head -c 2M /dev/zero | tr '\\0' x")
    assert answer.unwrap().truncated
    assert len(answer.unwrap().output) < 80_000
    assert "All of it is in /run/gamebox/" in said(answer, "output_cut").hint
    flood = small.run("head -c 9M /dev/zero | tr '\\0' x").unwrap()
    assert flood.spill_truncated
    assert flood.spill_path is not None


def test_background_commands(small: DockerEnvironment) -> None:
    ids = [small.run("sleep 1000", background=True).unwrap().id for _ in range(3)]
    refused(small.run("true", background=True), ErrorCode.too_many_commands, "3 background commands", "Kill one")
    assert small.usage().unwrap().running == tuple(ids)
    assert f"running: {', '.join(ids)}" in small.describe()["left"]
    for ident in ids:
        small.kill(ident).unwrap()
    assert small.usage().unwrap().running == ()


def test_sessions(small: DockerEnvironment) -> None:
    names = ["default", "second", "third"]
    for name in names:
        small.run("true", session=name).unwrap()
    refused(small.run("true", session="fourth"), ErrorCode.too_many_commands, "3 sessions", "end_session")
    small.end_session("third").unwrap()
    small.run("true", session="fourth").unwrap()
    small.end_session("fourth").unwrap()
    small.end_session("second").unwrap()


def test_concurrent_actions(small: DockerEnvironment) -> None:
    answers: list[Any] = []

    def wait_for_go(number: int) -> None:
        command = f"touch up{number}; until [ -e go ]; do sleep 0.05; done"
        answers.append(small.run(command, session=None, timeout_seconds=60))

    threads = [threading.Thread(target=wait_for_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number in range(4):
        small.wait_for(file=f"up{number}", timeout_seconds=30).unwrap()
    refused(small.run("true", session=None), ErrorCode.too_many_commands, "4 commands are already running")
    small.write("beside", "text").unwrap()
    small.write("go", "").unwrap()
    for thread in threads:
        thread.join()
    assert [answer.ok for answer in answers] == [True] * 4
    small.run("rm up? go", session=None).unwrap()


def test_usage_and_what_is_left(small: DockerEnvironment) -> None:
    usage = small.usage().unwrap()
    assert usage.memory_limit_bytes == LIMITS.memory_bytes
    assert 0 < (usage.memory_used_bytes or 0) < 100 * MIB
    assert (usage.memory_peak_bytes or 0) >= (usage.memory_used_bytes or 0)
    assert usage.process_limit == 96
    assert 0 < (usage.processes or 0) < 40
    assert [place.path for place in usage.places] == ["/workspace", "/home/agent", "/tmp"]
    assert usage.places[0].size_bytes == LIMITS.workspace_bytes
    assert 0 < (usage.lifetime_left_seconds or 0) < 3600
    assert 3590 < (usage.idle_left_seconds or 0) <= 3600
    sections = small.describe()
    assert list(sections)[-1] == "left"
    assert [line.partition(":")[0] for line in sections["left"].splitlines()] == [
        "memory", "/workspace", "/home/agent", "/tmp", "processes", "time", "running",
    ]  # fmt: skip
    assert "30 s of processor time" in sections["limits"]
    assert "60 minutes after its start" in sections["limits"]


def has_ended(answer: Envelope[Any]) -> bool:
    return not answer.ok and answer.code is ErrorCode.sandbox_unavailable


def test_the_end_of_its_lifetime() -> None:
    for life in (4.0, 12.0, 40.0):  # only the last tenth has the notice: on a busy machine nobody may ask in so short a time
        with DockerEnvironment(limits=Limits(lifetime_seconds=life)) as env, ThreadPoolExecutor(1) as pool:
            running = pool.submit(env.run, "sleep 100")
            time.sleep(0.85 * life)
            near = seen_until(lambda: env.read("/nonexistent"), lambda seen: bool(seen.notices) or has_ended(seen))
            if has_ended(near) and life < 40.0:
                continue
            assert said(near, "lifetime_ending").message.startswith("This sandbox ends in ")
            answer, _ = within(life / 10 + 3.6, running.result)
            words = (f"its lifetime of {life:g} seconds was over", f"lifetime_seconds above {life:g}")
            refused(answer, ErrorCode.sandbox_unavailable, *words)
            refused(env.run("true"), ErrorCode.sandbox_unavailable, "lifetime")
            assert of_commands(env) == []
            return


def told_while_idle(seconds: float) -> tuple[list[str], Envelope[Any]]:
    """The codes of the notices that a sandbox sends before it ends because it is idle, and its last answer."""
    told: list[str] = []
    with DockerEnvironment(limits=Limits(idle_seconds=seconds)) as env:
        worked = env.run(f"sleep {seconds + 1:g}", timeout_seconds=seconds + 30)  # though nobody asks for anything meanwhile
        begun = env.run("sleep 1000 & echo $!")  # sleeps: no work
        if not (worked.ok and begun.ok):
            return told, begun
        deadline = time.monotonic() + 120
        while (answer := env.logs(begun.unwrap().id)).ok and time.monotonic() < deadline:  # only watched
            told += [notice.code for notice in answer.notices]
            time.sleep(0.01)
        return told, answer


def test_an_idle_sandbox_ends() -> None:
    for seconds in (2.0, 10.0, 30.0):  # only the last tenth has the notice: on a busy machine nobody may ask in so short a time
        told, answer = told_while_idle(seconds)
        if told:
            break
    assert told == ["idle_ending"]
    words = (f"nothing was done in it for {seconds:g} seconds", f"idle_seconds above {seconds:g}")
    refused(answer, ErrorCode.sandbox_unavailable, *words)


def test_what_computes_in_the_background_keeps_a_sandbox() -> None:
    with DockerEnvironment(limits=Limits(idle_seconds=3.0)) as env:
        left = env.run(f"sh -c '{SPIN}' & echo $!").unwrap()
        assert left.left_running == 1
        time.sleep(4.5)
        assert env.run("echo alive").unwrap().output == "alive\n"
        env.run("sleep 600", background=True).unwrap()
        env.kill(left.id).unwrap()
        time.sleep(4.5)
        assert env.run("echo alive").unwrap().output == "alive\n"
