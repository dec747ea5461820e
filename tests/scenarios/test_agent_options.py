"""``gamebox agent`` as a person starts it: what must hold at the end, MCP servers, words in mid-run, and following a run."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.record.store import EventLog, RunRecord, record_of
from tests.programs import run_gamebox

GAMEBOX = [sys.executable, "-c", "from agent.cli.app import main; main()"]
FINISH = {"tool": "finish", "args": {"summary": "all done"}}
OFFICIAL = Path(__file__).parents[1] / "servers" / "mcp_official.py"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(command: str) -> dict[str, Any]:
    return {"tool": "run", "args": {"command": command}}


def script(tmp_path: Path, *steps: Any) -> str:
    (tmp_path / "script.json").write_text(json.dumps(steps))
    return str(tmp_path / "script.json")


def gamebox(*args: str, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    done = run_gamebox(*args, **options)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def steps_of(which: str = "last") -> list[dict[str, Any]]:
    return list(json.loads(gamebox("runs", "show", which, "--json").stdout)["steps"])


def codes() -> list[Any]:
    return [(step["envelope"] or {}).get("code") for step in steps_of()]


# --- the end ------------------------------------------------------------------
def test_it_ends_only_when_its_checks_pass(repo: Path, tmp_path: Path) -> None:
    steps = script(tmp_path, FINISH, run("echo two >> a.txt"), FINISH, run("echo three >> a.txt"), FINISH)
    args = ["agent", "count", "--local", "--repo", str(repo), "--script", steps]
    done = gamebox(*args, "--check", "grep two a.txt", "--check", "grep three a.txt")
    assert codes() == ["finish_refused", None, "finish_refused", None, None]
    told = [step["envelope"]["error"] for step in steps_of() if not step["envelope"]["tool_executed"]]
    assert ["grep two a.txt" in told[0], "grep three a.txt" in told[1]] == [True, True]
    assert "+three" in done.stdout
    # one that never passes: not finished, and nothing is written back
    steps = script(tmp_path, FINISH, run("echo two >> a.txt"), FINISH)
    gamebox(*args, "--check", "false", "--apply", "--max-iterations", "3", code=1)
    assert (repo / "a.txt").read_text() == "one\n"


def test_a_closed_plan_that_does_not_pass_goes_back_to_the_model(repo: Path, tmp_path: Path) -> None:
    close = {"tool": "modify_task", "args": {"task_id": "0", "state": "completed"}}
    add = {"tool": "add_task", "args": {"parent": "", "goal": "count"}}
    steps = script(tmp_path, add, close, run("echo two >> a.txt"), FINISH)
    args = ["--local", "--repo", str(repo), "--script", steps, "--check", "grep two a.txt"]
    gamebox("agent", "count", "--agent", "planner", *args)
    shown = [(step["tool"], (step["envelope"] or {}).get("code")) for step in steps_of()]
    assert shown[-3:] == [("finish", "finish_refused"), ("run", None), ("finish", None)]


@pytest.mark.parametrize("logged", [True, False])
def test_another_agent_has_to_agree(logged: bool, repo: Path, tmp_path: Path) -> None:
    """It reads the files itself, in the same sandbox; what it finds missing goes back."""
    verdicts = [{"completed": False, "summary": "two is missing"}, {"completed": True, "summary": "it is there"}]
    no, yes = ({"tool": "finish", "args": verdict} for verdict in verdicts)
    look = run("cat a.txt")
    steps = script(tmp_path, FINISH, look, no, run("echo two >> a.txt"), FINISH, look, yes)
    args = ["agent", "count", "--local", "--repo", str(repo), "--script", steps, "--verifier", "verifier"]
    done = gamebox(*args, *([] if logged else ["--no-log"]))
    assert "+two" in done.stdout
    assert "[verifier 1]" in done.stderr
    if logged:
        assert codes() == ["finish_refused", None, None]
        assert "two is missing" in steps_of()[0]["envelope"]["error"]
        shown = json.loads(gamebox("runs", "show", "last", "--json").stdout)
        assert len(shown["children"]) == 2


SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("agent", ["codeact", "coding", "planner", "monologue"])
def test_a_result_of_a_shape(agent: str, repo: Path, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    steps = script(tmp_path, FINISH, {"tool": "finish", "args": {"answer": 391}})
    args = ["--local", "--repo", str(repo), "--script", steps, "--result-schema", str(tmp_path / "schema.json")]
    done = gamebox("agent", "17 * 23", "--agent", agent, *args, "--json")
    assert json.loads(done.stdout)["result"] == {"answer": 391}
    assert codes() == ["invalid_arguments", None]


DEMANDING = """---
name: demanding
description: Verifies a style.
inputs: {task: string, style: string}
outputs: {completed: boolean}
actions: [finish]
---
See whether {{ inputs.task }} has the style {{ inputs.style }}.
"""


@pytest.mark.parametrize(
    ("args", "says", "hint"),
    [
        (["--check", " "], "--check is empty", "pytest"),
        (["--verifier", "verifyer"], "no agent 'verifyer'", "Did you mean 'verifier'"),
        (["--verifier", "codeact"], "cannot say yes", "--verifier verifier"),
        (["--verifier", "demanding", "--agents", "agents"], "needs more than a task (style)", "--verifier verifier"),
        (["--agent", "mini", "--check", "true"], "the output of a command ends its run", "another agent"),
        (["--agent", "verifier", "--verifier", "verifier"], "cannot verify its own kind", "verifier"),
        (["--result-schema", "none.json"], "cannot be read", '"type": "object"'),
        (["--result-schema", "list.json"], "does not describe an object", '"type": "object"'),
        (["--result-schema", "wrong.json"], "is invalid", '"type": "object"'),
        (["--result-schema", "good.json", "--agent", "verifier"], "a result of its own (completed, summary)", "another agent"),
        (["--result-schema", "good.json", "--agent", "swe_agent"], "ends without a result", "gamebox hub show"),
        (["--keep"], "--local has no sandbox to keep", "Leave out --keep"),
        (["--keep-seconds", "60"], "--local has no sandbox to keep", "Leave out --keep"),
        (["--keep", "--no-log"], "With --no-log no sandbox can be kept", "Leave out --no-log"),
        (["--mcp", "notes"], "is not NAME=COMMAND or NAME=ADDRESS", "python3 -m notes_server"),
        (["--mcp", "Notes=x"], "'Notes' is not a valid name for a server", "lower-case letters"),
        (["--mcp", "notes=x", "--mcp", "notes=y"], "twice", "a name of its own"),
        (["--mcp", "notes=ws://example.com/"], "not an http or https address", "https://"),
        (["--mcp", "notes=https://me:secret1@example.com/"], "has a user or a password", "--mcp-header notes:Authorization"),
        (["--mcp", "notes=x", "--agent", "verifier"], "only reads", "may write"),
        (["--mcp-header", "notes:Authorization=TOKEN"], "that --mcp does not name", "none"),
        (["--mcp", "notes=x", "--mcp-header", "notes:Authorization=TOKEN"], "is a command", "address"),
        (["--mcp", "n=https://example.com/", "--mcp-header", "n:Authorization=NOT_SET"], "NOT_SET is not set", "Export NOT_SET"),
        (["--mcp", "n=https://example.com/", "--mcp-header", "n:Authorization=Bearer secret1"], "is given a value", "VARIABLE"),
        (["--mcp", "n=https://example.com/", "--mcp-header", "Authorization=secret1"], "does not name a server", "VARIABLE"),
    ],
)  # fmt: skip
def test_typical_mistakes_are_answered(args: list[str], says: str, hint: str, repo: Path, tmp_path: Path) -> None:
    """Before anything is started or recorded; and no secret is repeated."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/demanding.md").write_text(DEMANDING)
    (tmp_path / "list.json").write_text('{"type": "array"}')
    (tmp_path / "wrong.json").write_text('{"type": "object", "properties": {"a": {"type": "text"}}}')
    (tmp_path / "good.json").write_text(json.dumps(SCHEMA))
    usual = ["--local", "--repo", str(repo), "--script", script(tmp_path, FINISH)]
    done = gamebox("agent", "count", *usual, *args, code=2, cwd=tmp_path)
    assert says in done.stderr
    assert hint in done.stderr.split("hint:")[1]
    assert "secret1" not in done.stderr
    assert not (tmp_path / "state").exists()


# --- MCP servers ------------------------------------------------------------------
def test_a_server_in_the_sandbox(repo: Path, tmp_path: Path) -> None:
    steps = script(tmp_path, {"tool": "notes_add", "args": {"a": 2, "b": 3}}, FINISH)
    server = f"notes=exec {sys.executable} {OFFICIAL}"
    gamebox("agent", "add", "--local", "--repo", str(repo), "--script", steps, "--mcp", server)
    assert steps_of()[0]["envelope"]["result"]["structured"] == {"result": 5}


def test_a_server_of_a_file_as_other_clients_have_it(repo: Path, tmp_path: Path) -> None:
    steps = script(tmp_path, {"tool": "my-notes_add", "args": {"a": 2, "b": 3}}, FINISH)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"My Notes": {"command": sys.executable, "args": [str(OFFICIAL)]}}}))
    args = ["--local", "--repo", str(repo), "--script", steps]
    gamebox("agent", "add", *args, "--mcp-config", str(file))
    assert steps_of()[0]["envelope"]["result"]["structured"] == {"result": 5}


def test_a_server_that_does_not_start_is_told(repo: Path, tmp_path: Path) -> None:
    steps = script(tmp_path, FINISH)
    args = ["--local", "--repo", str(repo), "--script", steps, "--mcp", "notes=exec no-such-server"]
    done = gamebox("agent", "add", *args, code=2)
    assert "The MCP server 'notes' could not be used" in done.stderr
    assert "no-such-server" in done.stderr


ECHO = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_GET(self): self.send_error(405)
    def do_DELETE(self): self.send_error(405)
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in asked:
            self.send_response(202); self.send_header("content-length", "0"); self.end_headers(); return
        seen = self.headers.get("authorization", "none")
        info, empty = {"name": "n", "version": "1"}, {"type": "object", "properties": {}}
        result = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info},
                  "tools/list": {"tools": [{"name": "who", "description": "Who.", "inputSchema": empty}]},
                  "tools/call": {"content": [{"type": "text", "text": seen}]}}[asked["method"]]
        data = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
        self.send_response(200); self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data))); self.end_headers(); self.wfile.write(data)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_server_at_an_address_with_a_header_of_a_variable(repo: Path, tmp_path: Path) -> None:
    """The server gets the value; the log, the output and the options of the run do not."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/mcp"
            steps = script(tmp_path, {"tool": "tracker_who", "args": {}}, FINISH)
            args = ["--local", "--repo", str(repo), "--script", steps, "--mcp", f"tracker={url}"]
            env = {**os.environ, "TRACKER_TOKEN": "Bearer sk-0123456789"}
            header = ["--mcp-header", "tracker:Authorization=TRACKER_TOKEN"]
            done = gamebox("agent", "who", *args, *header, "--json", env=env)
        finally:
            server.terminate()
    assert "***TRACKER_TOKEN***" in str(steps_of()[0]["envelope"]["result"])
    kept = [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not [data for data in [*kept, done.stdout.encode(), done.stderr.encode()] if b"sk-0123456789" in data]


# --- words in mid-run ------------------------------------------------------------------
@contextmanager
def under_way(repo: Path, tmp_path: Path, *steps: Any, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A run in a process of its own that has begun to wait in its first step."""
    args = ["--local", "--agent", "coding", "--repo", str(repo), "--script", script(tmp_path, *steps)]
    command = [*GAMEBOX, "agent", "count", *args]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            wait_for(tmp_path, lambda record: bool(record.steps) and record.steps[-1].started is not None)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def wait_for(tmp_path: Path, until: Any) -> RunRecord:
    log = tmp_path / "state/gamebox/runs.db"
    deadline = time.monotonic() + 120
    while True:
        assert time.monotonic() < deadline
        if log.exists():
            with EventLog(log) as events:
                if events.runs() and until(record := record_of(events, "last")):
                    return record
        time.sleep(0.1)


def waiting(tmp_path: Path) -> dict[str, Any]:
    """A step that ends when there is a file: time to say something."""
    return run(f"echo begun; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo over")


def test_said_by_another_process(repo: Path, tmp_path: Path) -> None:
    with under_way(repo, tmp_path, waiting(tmp_path), run("echo two >> a.txt"), FINISH) as process:
        said = gamebox("runs", "say", "last", "use the new API")
        assert "the agent reads it before its next decision" in said.stderr
        gamebox("runs", "say", "last", "-", input="and\nbe brief\n")
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.count("your message is read") == 2
    record = wait_for(tmp_path, lambda record: record.status is not None)
    spoken = [m["content"] for m in record.messages if m.get("source") == "user"]
    assert spoken == ["use the new API", "and\nbe brief\n"]
    assert [m["role"] for m in record.messages[:5]] == ["user", "assistant", "tool", "user", "user"]
    late = gamebox("runs", "say", "last", "too late", code=2)
    assert "has ended (finished)" in late.stderr


def test_what_is_said_is_not_lost_with_its_process(repo: Path, tmp_path: Path) -> None:
    """Paused before it was read: it is read when the run is resumed, once."""
    with under_way(repo, tmp_path, waiting(tmp_path), FINISH) as process:
        gamebox("runs", "say", "last", "be brief")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the agent reads it after gamebox runs resume" in gamebox("runs", "say", "last", "and kind").stderr
    (tmp_path / "go").touch()
    gamebox("runs", "resume", "last", "--fresh")
    record = wait_for(tmp_path, lambda record: record.status == "finished")
    assert [m["content"] for m in record.messages if m.get("source") == "user"] == ["be brief", "and kind"]


@pytest.mark.parametrize("text", ["", " \n", "x" * 100_001])
def test_what_cannot_be_said(text: str, repo: Path, tmp_path: Path) -> None:
    with under_way(repo, tmp_path, waiting(tmp_path), FINISH) as process:
        refused = gamebox("runs", "say", "last", "-", input=text, code=2)
        assert "hint: Write a message" in refused.stderr
        (tmp_path / "go").touch()
        process.communicate(timeout=60)


def test_typed_on_the_terminal(repo: Path, tmp_path: Path) -> None:
    """What is typed while nothing is asked is said to the agent; the diff still goes to standard output."""
    ours, theirs = pty.openpty()
    said = ("Which file?", "a.txt, of course")
    ask = {"tool": "message", "args": {"content": said[0]}}
    steps = (waiting(tmp_path), ask, run("echo two >> a.txt"), FINISH)
    args = ["--local", "--agent", "codeact", "--repo", str(repo), "--script", script(tmp_path, *steps)]
    command = [*GAMEBOX, "agent", "count", *args]
    with (tmp_path / "diff").open("w") as diff, subprocess.Popen(
        command, stdin=theirs, stdout=diff, stderr=theirs, start_new_session=True, preexec_fn=lambda: controlled(theirs)
    ) as process:
        os.close(theirs)
        wait_for(tmp_path, lambda record: bool(record.steps) and record.steps[-1].started is not None)
        os.write(ours, b"be brief\n")
        shown = read_until(ours, "Sent: the agent reads it")
        (tmp_path / "go").touch()
        shown += read_until(ours, "the agent asks") if said[0] not in shown else ""
        os.write(ours, f"{said[1]}\n".encode())
        shown += read_until(ours, "changed")
        assert process.wait(60) == 0, shown
    os.close(ours)
    assert "Type a line to send a message" in shown
    assert "+two" in (tmp_path / "diff").read_text()
    record = wait_for(tmp_path, lambda record: record.status == "finished")
    assert [m["content"] for m in record.messages if m.get("source") == "user"] == ["be brief"]
    assert said[1] in str(record.steps[1].envelope)


def controlled(descriptor: int) -> None:
    """Make the terminal that of the new session, as a shell does."""
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def read_until(descriptor: int, text: str) -> str:
    """What comes until ``text`` does."""
    found, deadline = b"", time.monotonic() + 60
    while text.encode() not in found:
        assert time.monotonic() < deadline, found.decode()
        try:
            found += os.read(descriptor, 4096)
        except OSError:
            break
    return found.decode(errors="replace")


# --- a run that goes on elsewhere ------------------------------------------------------------------
def follower(*args: str) -> subprocess.Popen[str]:
    command = [*GAMEBOX, "runs", "show", "last", "--follow", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_followed_until_it_ends(repo: Path, tmp_path: Path) -> None:
    with under_way(repo, tmp_path, waiting(tmp_path), run("exit 3"), FINISH) as process:
        assert "running" in gamebox("runs", "ls").stdout
        with follower() as shown, follower("--json") as told:
            assert shown.stdout is not None
            seen = ""
            while "→ run" not in seen:  # what is under way is shown before it is answered
                line = shown.stdout.readline()
                assert line
                seen += line
            assert "over" not in seen.split("→ run")[1].split("\n")[-1]
            gamebox("runs", "say", "last", "be brief")
            (tmp_path / "go").touch()
            rest, err = shown.communicate(timeout=60)
            data, _ = told.communicate(timeout=60)
        process.communicate(timeout=60)
    assert (shown.returncode, told.returncode, err) == (0, 0, "")
    text = seen + rest
    places = [text.index(part) for part in ("[1]", "over", "the user says: be brief", "[2]", "exit code 3", "[3]", "finished:")]
    assert places == sorted(places)
    events = [json.loads(line) for line in data.splitlines()]
    assert (events[0]["kind"], events[-1]["kind"]) == ("RunBegan", "RunEnded")
    assert [event["id"] for event in events] == [*range(1, len(events) + 1)]
    again = gamebox("runs", "show", "last", "--follow")
    assert again.stdout == text


def test_a_run_that_is_cut_off_ends_what_follows_it(repo: Path, tmp_path: Path) -> None:
    with under_way(repo, tmp_path, waiting(tmp_path), FINISH) as process, follower() as shown:
        time.sleep(1)
        process.kill()
        process.communicate()
        text, _ = shown.communicate(timeout=30)
    assert shown.returncode == 0
    assert text.rstrip().endswith("cut off: no process writes it any more")


def test_parts_of_a_run_are_followed_too(repo: Path, tmp_path: Path) -> None:
    yes = {"tool": "finish", "args": {"completed": True, "summary": "it is there"}}
    steps = script(tmp_path, FINISH, run("cat a.txt"), yes)
    gamebox("agent", "count", "--local", "--repo", str(repo), "--script", steps, "--verifier", "verifier")
    shown = gamebox("runs", "show", "last", "--follow").stdout
    places = [shown.index(part) for part in ("[1]", "[verifier 1]", "[verifier 2]", "verifier finished:", "\nfinished:")]
    assert places == sorted(places)
