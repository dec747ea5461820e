"""Real runs of the program ``mini`` in a sandbox, with a model on loopback that says what it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

FIX = "printf 'def add(a, b):\\n    return a + b\\n' > calc.py && python3 -c 'import calc; print(calc.add(2, 3))'"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat calc.py"
CLASS = "sandbox.integrations.mini_swe_agent.GameboxEnvironment"


class Model(ThreadingHTTPServer):
    """A server of chat completions: each answer calls the tool with the next of the commands."""

    commands: list[str]
    asked: list[dict[str, Any]]


class _Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        command = self.server.commands.pop(0)
        call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
        message = {"role": "assistant", "content": "Next.", "tool_calls": [call]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
        data = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data.encode())

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model(("127.0.0.1", 0), _Handler)
    server.commands, server.asked = [FIX, SUBMIT], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def _mini(model: Model, folder: Path) -> list[str]:
    settings = {
        "model": {
            "model_kwargs": {"api_base": f"http://127.0.0.1:{model.server_port}/v1", "api_key": "none"},
            "cost_tracking": "ignore_errors",
        },
        "environment": {"environment_class": CLASS},
    }
    (folder / "ours.yaml").write_text(json.dumps(settings))
    program = str(Path(sys.executable).with_name("mini"))
    options = ["-c", "mini.yaml", "-c", str(folder / "ours.yaml"), "-m", "openai/scripted", "-t", "Write calc.py.", "-y"]
    return [program, *options, "--exit-immediately", "-o", str(folder / "run.json")]


def _env(folder: Path) -> dict[str, str]:
    ours = {"MSWEA_CONFIGURED": "true", "MSWEA_GLOBAL_CONFIG_DIR": str(folder), "MSWEA_SILENT_STARTUP": "1"}
    return {**os.environ, **ours, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def test_the_command_mini_solves_a_task(model: Model, tmp_path: Path) -> None:
    ran = subprocess.run(_mini(model, tmp_path), env=_env(tmp_path), capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    trajectory = json.loads((tmp_path / "run.json").read_text())
    assert trajectory["info"]["exit_status"] == "Submitted"
    assert trajectory["info"]["submission"] == "def add(a, b):\n    return a + b\n"
    assert trajectory["info"]["config"]["environment_type"] == CLASS
    assert json.loads(model.asked[1]["messages"][-1]["content"]) == {"returncode": 0, "output": "5\n"}


def test_a_killed_run_leaves_no_sandbox(model: Model, tmp_path: Path) -> None:
    model.commands = ["touch begun; sleep 600"]
    process = subprocess.Popen(_mini(model, tmp_path), env=_env(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 100
    try:
        while not model.asked or not _containers(process.pid):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    while _containers(process.pid):
        assert time.monotonic() < until
        time.sleep(0.2)


def _containers(pid: int) -> list[str]:
    command = ["docker", "ps", "-aq", "--filter", f"label=dev.gamebox.pid={pid}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
