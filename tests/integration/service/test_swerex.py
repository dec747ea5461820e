"""The wire of SWE-ReX as its client speaks it: shells that are kept, commands, files. Its own tests are run by make foreign."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers.gamebox_service import ServiceProcess, shared_service

from .api import Api

pytestmark = pytest.mark.engine


class Rex:
    """What the client of SWE-ReX sends to one sandbox."""

    def __init__(self, service: ServiceProcess, sandbox: str) -> None:
        headers = {"X-API-Key": service.key}
        self.http = httpx.Client(base_url=f"{service.url}/wire/swerex/{sandbox}", headers=headers, timeout=60, trust_env=False)

    def ask(self, route: str, ident: str = "", **body: Any) -> dict[str, Any]:
        """Return the answer, or the exception."""
        answer = self.http.post(f"/{route}", json=body, headers={"X-Request-ID": ident} if ident else {})
        assert answer.status_code in (200, 511), answer.text
        return dict(answer.json().get("swerexception", answer.json()))

    def bash(self, command: str, **options: Any) -> dict[str, Any]:
        """Carry out a command in the session."""
        return self.ask("run_in_session", action_type="bash", command=command, **{"timeout": 20, "check": "silent", **options})


@pytest.fixture(scope="module")
def sandbox() -> Iterator[str]:
    with Api(shared_service()) as api:
        ident = str(api.call("POST", "/sandboxes", {}, status=201)["id"])
        yield ident
        api.call("DELETE", f"/sandboxes/{ident}", status=204)


@pytest.fixture
def rex(sandbox: str) -> Iterator[Rex]:
    made = Rex(shared_service(), sandbox)
    yield made
    assert made.ask("close") == {}
    made.http.close()


def test_a_session_is_one_shell(rex: Rex) -> None:
    assert rex.bash("true")["class_path"] == "swerex.exceptions.SessionDoesNotExistError"
    assert rex.ask("create_session")["output"] == ""
    assert rex.ask("create_session")["class_path"] == "swerex.exceptions.SessionExistsError"
    assert rex.bash("x=1; cd /tmp; f() { return 7; }")["exit_code"] == 0
    assert rex.bash("echo $x $PWD\nf")["output"] == "1 /tmp\n"
    assert rex.bash("f", check="raise")["class_path"] == "swerex.exceptions.NonZeroExitCodeError"
    assert rex.bash("f", check="ignore")["exit_code"] is None
    bad = rex.bash("(a")
    assert bad["class_path"] == "swerex.exceptions.BashIncorrectSyntaxError"
    assert "syntax error" in bad["extra_info"]["bash_stderr"]
    large = rex.bash("head -c 3000000 /dev/zero | tr '\\0' a; echo end", timeout=40)["output"]
    assert large.endswith("end\n")
    assert "are left out" in large
    assert len(large) < 1_100_000
    assert rex.bash("echo $x; exit 3")["class_path"] == "swerex.exceptions.SwerexException"


def test_a_late_prompt_is_not_taken_for_that_of_the_next_command(rex: Rex) -> None:
    rex.ask("create_session", session="late")
    assert rex.bash("sleep 0.7; echo late", session="late", timeout=0.2)["class_path"] == "swerex.exceptions.CommandTimeoutError"
    answer = rex.bash("echo next; false", session="late")
    assert answer["output"].endswith("next\n")
    assert answer["exit_code"] == 1
    rex.bash("sleep 30", session="late", timeout=0.2)
    assert rex.ask("run_in_session", action_type="bash_interrupt", session="late", timeout=5)["exit_code"] == 0
    assert rex.bash("echo again", session="late")["output"] == "again\n"


def test_a_program_that_asks(rex: Rex) -> None:
    rex.ask("create_session")
    asked = rex.bash("read -p 'name? ' name && echo \"<$name>\"", is_interactive_command=True, expect=["name? "])
    assert asked["expect_string"] == "name? "
    assert "<me>" in rex.bash("me", is_interactive_quit=True)["output"]
    assert rex.bash("echo $name", check="raise")["output"] == "me\n"


def test_commands_and_files(rex: Rex) -> None:
    ran = rex.ask("execute", command=["sh", "-c", "echo out; echo err >&2; echo $A; exit 3"], env={"A": "b"})
    assert ran == {"stdout": "out\nb\n", "stderr": "err\n", "exit_code": 3}
    assert rex.ask("execute", command="kill -9 $$", shell=True)["exit_code"] == -9
    assert rex.ask("execute", command=["sleep", "9"], timeout=0.1)["class_path"] == "swerex.exceptions.CommandTimeoutError"
    assert rex.ask("write_file", path="new/a.txt", content="tést") == {}
    assert rex.ask("read_file", path="new/a.txt") == {"content": "tést"}
    assert rex.ask("read_file", path="no")["class_path"] == "builtins.FileNotFoundError"
    assert rex.ask("read_file", path="new")["class_path"] == "builtins.IsADirectoryError"
    assert rex.ask("write_file", path="/etc/passwd", content="")["class_path"] == "builtins.PermissionError"
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as made:
        made.writestr("sub/b.txt", "two")
    answer = rex.http.post("/upload", files={"file": sink.getvalue()}, data={"target_path": "/tmp/tree", "unzip": "true"})
    assert answer.json() == {}
    assert rex.ask("read_file", path="/tmp/tree/sub/b.txt") == {"content": "two"}
    with zipfile.ZipFile(sink, "w") as made:
        made.writestr("../out.txt", "out")
    answer = rex.http.post("/upload", files={"file": sink.getvalue()}, data={"target_path": "/tmp/tree", "unzip": "true"})
    assert answer.status_code == 511


def test_a_request_that_is_sent_again_is_carried_out_once(rex: Rex) -> None:
    count = {"command": "echo x >> count; wc -l < count", "shell": True}
    assert [rex.ask("execute", "same", **count)["stdout"] for _ in range(2)] == ["1\n", "1\n"]
    assert rex.ask("execute", "other", **count)["stdout"] == "2\n"


def test_a_token_names_its_sandbox_at_the_root_of_the_service(rex: Rex, sandbox: str) -> None:
    service = shared_service()
    with Api(service) as api, httpx.Client(base_url=service.url, timeout=60, trust_env=False) as http:
        other = str(api.call("POST", "/sandboxes", {}, status=201)["id"])
        key = api.call("POST", "/keys", {"name": "of a token", "scope": "use"}, status=201)
        asked = http.post(f"/wire/swerex/{sandbox}/token", headers={"X-API-Key": key["key"]})
        token = {"X-API-Key": asked.json()["auth_token"]}

        assert http.get("/is_alive", headers=token).json() == {"is_alive": True, "message": ""}
        written = http.post("/write_file", headers=token, json={"path": "by-token.txt", "content": "here"})
        assert written.json() == {}
        assert rex.ask("read_file", path="by-token.txt") == {"content": "here"}
        assert http.post("/execute", headers=token, json={"command": "cat by-token.txt", "shell": True}).json()["stdout"] == "here"
        assert http.post("/close", headers=token).json() == {}
        assert http.get("/is_alive", headers=token).json()["is_alive"], "close ends sessions, not the sandbox"

        # It opens nothing else, and neither does one that was changed.
        assert http.get(f"/wire/swerex/{other}/is_alive", headers=token).status_code == 401
        assert http.post(f"/wire/swerex/{sandbox}/token", headers=token).status_code == 401
        assert http.get("/v1/sandboxes", headers=token).status_code == 401
        wrong = {"X-API-Key": token["X-API-Key"].replace(sandbox, other)}
        assert http.get("/is_alive", headers=wrong).status_code == 401
        refused = http.get("/is_alive", headers={"X-API-Key": service.key})
        assert refused.status_code == 401
        assert "The host names no sandbox" in refused.json()["detail"]

        api.call("DELETE", f"/keys/{key['id']}", status=204)
        assert http.get("/is_alive", headers=token).status_code == 401
        api.call("DELETE", f"/sandboxes/{other}", status=204)


def test_sessions_go_on_when_the_service_restarts(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "data", "--stop-all").start()
    try:
        with Api(service) as api:
            rex = Rex(service, str(api.call("POST", "/sandboxes", {}, status=201)["id"]))
        rex.ask("create_session", session="kept")
        rex.bash("x=5", session="kept")
        service.kill()
        service.start()
        assert rex.bash("echo $x", session="kept")["output"] == "5\n"
        assert rex.ask("create_session", session="kept")["class_path"] == "swerex.exceptions.SessionExistsError"
        assert rex.ask("close") == {}
        assert rex.bash("true", session="kept")["class_path"] == "swerex.exceptions.SessionDoesNotExistError"
        rex.http.close()
    finally:
        service.stop()
