"""Ctrl-C in a model call ends the run, whatever the model's library makes of it (UX 6)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.record.store import EventLog, record_of

from .model_server import ModelServer, call

# What a library can make of the exception: another one, which would be tried again, or nothing at all.
LIBRARIES = {
    "as it is": "",
    "another exception": """
    except KeyboardInterrupt as error:
        raise litellm.InternalServerError("it broke", "openai", kwargs["model"]) from error
""",
    "nothing": """
    except KeyboardInterrupt:
        return real(*args, **kwargs)
""",
}
PROGRAM = """
import sys
import litellm
real = litellm.completion
def completion(*args, **kwargs):
    try:
        return real(*args, **kwargs)
{swallowed}
{patch}
from agent.cli.app import main
main()
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_ctrl_c_in_a_model_call_pauses_the_run(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swallowed = LIBRARIES[library]
    patch = "litellm.completion = completion" if swallowed else ""
    program = PROGRAM.format(swallowed=swallowed or "    finally: pass", patch=patch)
    quick = call("run", {"command": "echo on"})
    replies = [replace(quick, delay_seconds=60), quick, call("finish", {"summary": "it went on"})]
    repo = tmp_path / "repo"
    repo.mkdir()
    with ModelServer(replies) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        command = [sys.executable, "-c", program, "agent", "look", "--agent", "coding", "--local", "--repo", str(repo)]
        command += ["--model", "openai/gpt-4o-mini", "--log", str(tmp_path / "runs.db"), "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 120
            while not server.requests:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.5)  # the client has sent all of it, and waits
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "trying again" not in err
    assert json.loads(out)["status"] == "paused"
    assert len(server.requests) == (2 if library == "nothing" else 1), "the call itself may end as it likes, the run does not go on"
    with EventLog(tmp_path / "runs.db") as log:
        record = record_of(log, "last")
    assert record.status == "paused"
    assert [step.tool for step in record.steps if step.executed] == []
