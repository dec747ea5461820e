"""What ``gamebox`` writes where: bytes as they were, whatever the locale, and a plain word when it cannot or is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.programs import run_gamebox

COMMAND = [sys.executable, "-c", "from agent.cli.app import main; main()"]


def gamebox(*args: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 120, **options}
    return subprocess.run([*COMMAND, *args], check=False, **settings)  # type: ignore[call-overload,no-any-return]


def run(*command: str) -> subprocess.CompletedProcess[bytes]:
    return gamebox("run", "--local", "--", *command)


def test_bytes_come_out_as_they_were_each_on_its_stream() -> None:
    done = run("sh", "-c", r"printf '\211PNG\0\377\n\r'; printf '\376err\n' >&2")
    assert done.stdout == b"\x89PNG\0\xff\n\r"
    assert b"\xfeerr\n" in done.stderr
    assert b"UTF-8" not in done.stderr


@pytest.mark.exhaustive
def test_long_output_comes_out_whole() -> None:
    done = run("seq", "1", "3000000")
    assert done.stdout == b"".join(b"%d\n" % n for n in range(1, 3_000_001))
    assert b"warning: --local" in done.stderr
    assert b"cut" not in done.stderr


def test_output_comes_as_it_is_printed(tmp_path: Path) -> None:
    script = f"echo first; until [ -e {tmp_path}/go ]; do sleep 0.02; done; echo last"
    with subprocess.Popen([*COMMAND, "run", "--local", "--", "sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        (tmp_path / "go").touch()
        assert process.stdout.read() == b"last\n"


@pytest.mark.exhaustive
def test_output_beyond_what_is_kept_is_said_once_and_no_lost_file_is_named() -> None:
    done = gamebox("run", "--local", "--memory", "64m", "--", "seq", "1", "1000000")
    assert len(done.stdout) == 6888896
    assert b".log" not in done.stderr
    told = json.loads(run_gamebox("run", "--local", "--memory", "64m", "--json", "--", "seq", "1", "1000000").stdout)
    assert told["result"]["spill_path"] is None
    assert "4791744 bytes cut ...]" in told["result"]["output"]
    assert [n["code"] for n in told["notices"]] == ["output_cut"]
    assert ".log" not in json.dumps(told)


@pytest.mark.exhaustive
def test_a_full_disk_behind_the_output() -> None:
    with open("/dev/full", "wb") as full:
        for args in (("run", "--local", "--", "echo", "hi"), ("run", "--local", "--json", "--", "true"), ("version",)):
            done = gamebox(*args, stdout=full)
            assert done.returncode == 2, done.stderr
            assert b"error: the output could not be written: No space left on device" in done.stderr
            assert b"Traceback" not in done.stderr
            assert b"Exception" not in done.stderr


def test_a_reader_that_has_had_enough() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = gamebox("run", "--local", "--", "seq", "1", "100000", stdout=writer)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == b"warning: --local runs on this host without isolation\n"


def test_text_is_utf_8_in_any_locale() -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for options in ((), ("--json",)):
        done = gamebox("run", "--local", *options, "--", "printf", "ä€", env=env)
        assert done.returncode == 0, done.stderr
        assert "ä€".encode() in done.stdout


def test_a_local_run_leaves_the_workspace_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "bin/tool").chmod(0o755)
    done = run_gamebox("run", "--local", "--workspace", tmp_path, "--", "sh", "-c", "bin/tool; echo x > bin/tool; > new")
    assert (done.stdout, done.returncode) == ("tool\n", 0)
    assert (tmp_path / "bin/tool").read_text() == "#!/bin/sh\necho tool\n"
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_told_to_end_it_says_so_and_leaves_nothing(tmp_path: Path, number: int, options: tuple[str, ...]) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    mark = tmp_path / "mark"
    script = f"echo $$ > {mark}; exec sleep 600"
    with subprocess.Popen(
        [*COMMAND, "run", "--local", *options, "--", "sh", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
    ) as process:  # fmt: skip
        pid = _number_in(mark)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted\n" in err
    assert b"Traceback" not in err
    assert out == b"" if not options else json.loads(out)["code"] == "cancelled"
    assert ends(pid)
    assert [p.name for p in tmp_path.iterdir()] == ["mark"]


def test_an_interrupt_while_the_process_ends_breaks_nothing_off() -> None:
    script = (
        "import atexit, os, signal, sys\n"
        "from agent.cli.app import main\n"
        "atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), print('put away')))\n"
        "sys.argv = ['gamebox', 'version']\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("put away\n")


def test_an_ignored_hangup_stays_ignored(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"echo $$ > {mark}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo done"
    with subprocess.Popen(
        [*COMMAND, "run", "--local", "--", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN) and None,
    ) as process:  # fmt: skip
        _number_in(mark)
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == (b"done\n", 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_agent_that_is_told_to_end_leaves_nothing(tmp_path: Path, number: int) -> None:
    repo, scratch, mark = tmp_path / "repo", tmp_path / "tmp", tmp_path / "mark"
    repo.mkdir()
    scratch.mkdir()
    (repo / "a").write_text("a\n")
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps([{"tool": "run", "args": {"command": f"echo $$ > {mark}; exec sleep 600"}}]))
    with subprocess.Popen(
        [*COMMAND, "agent", "t", "--agent", "coding", "--repo", str(repo), "--script", str(steps), "--local"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)},
    ) as process:  # fmt: skip
        pid = _number_in(mark)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert b"interrupted" in err
    assert ends(pid)
    assert list(scratch.iterdir()) == []


def ends(pid: int) -> bool:
    """Whether a process that would go on for 600 seconds is over soon: it was told to end, and may be dying."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not Path(f"/proc/{pid}").exists()


def _number_in(file: Path) -> int:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if file.exists() and file.read_text().strip():
            return int(file.read_text())
        time.sleep(0.02)
    raise AssertionError(f"nothing was written to {file}")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "args",
    [
        ("run", "--json"),
        ("run", "--json", "--nonsense", "--", "true"),
        ("run", "--json", "--memory", "lots", "--", "true"),
        ("run", "--json", "--local", "--workspace", "/nonexistent", "--", "true"),
        ("agent", "t", "--agent", "coding", "--repo", "/nonexistent", "--script", "/nonexistent", "--json"),
        ("agent", "t", "--json"),
    ],
)
def test_with_json_an_error_before_the_run_is_json_too(args: tuple[str, ...]) -> None:
    done = run_gamebox(*args)
    told = json.loads(done.stdout)
    assert (done.returncode, told["tool_executed"]) == (125 if args[0] == "run" else 2, False)
    assert f"({told['code']})" in done.stderr
    assert told["hint"]


def test_json_after_the_dashes_is_the_commands_own() -> None:
    done = run_gamebox("run", "--memory", "lots", "--", "echo", "--json")
    assert (done.stdout, done.returncode) == ("", 125)
