"""What the fake has beside the contract: how it is told of commands, and what it remembers."""

from __future__ import annotations

import gc
import os
import re

import pytest

from sandbox import FakeEnvironment, Network, operations
from sandbox.testing import FakeRun, Ran
from sandbox.testing.fake import FakeBackend

from .checks import codes_of, done, refused


def test_it_is_ready_and_holds_the_files_it_was_given() -> None:
    env = FakeEnvironment({"a.py": "x", "d/b": b"\xff", "/tmp/t": "t"})
    assert env.files == {"a.py": b"x", "d/b": b"\xff", "/tmp/t": b"t"}
    done(env.write("c", "new"))
    assert env.files["c"] == b"new"


def test_forms_of_the_table() -> None:
    asked: list[FakeRun] = []

    def answer(run: FakeRun) -> Ran:
        asked.append(run)
        return Ran(stdout=run.stdin.upper(), exit_code=2)

    env = FakeEnvironment(
        commands={
            "ls": "a.py\n",
            "raw": b"\xff",
            "make": {"exit_code": 2, "stderr": "no rule"},
            re.compile(r"pytest .*"): answer,
            "git status": Ran(stdout="clean", cwd="/workspace/d", exports={"A": "1"}),
        }
    )
    assert done(env.run("ls")).output == "a.py\n"
    assert done(env.run("raw")).output == "\ufffd"
    made = done(env.run("make"))
    assert (made.exit_code, made.stderr, made.stdout) == (2, "no rule", "")
    assert done(env.run(argv=["pytest", "-k", "a b"], stdin="typed", session=None)).output == "TYPED"
    assert (asked[0].command, asked[0].argv, asked[0].session) == ("pytest -k 'a b'", ("pytest", "-k", "a b"), None)
    assert done(env.run("git status")).cwd == "/workspace/d"
    done(env.run("pytest x"))
    assert (asked[1].cwd, dict(asked[1].env)) == ("/workspace/d", {"A": "1"})
    with pytest.raises(TypeError, match="exit_status"):
        FakeEnvironment(commands={"x": {"exit_status": 1}}).run("x")


def test_a_command_it_was_not_told_of_is_an_honest_failure() -> None:
    for env in (FakeEnvironment(), FakeEnvironment(commands={"ls": ""}), FakeEnvironment(commands=lambda run: None)):
        refused(env.run("rm -rf /"), "operation_not_supported", "'rm -rf /'", "FakeEnvironment(commands=...)")


def test_it_remembers_what_was_asked() -> None:
    env = FakeEnvironment({"a": "x"}, {"ls": ""})
    env.read("a")
    env.run("ls")
    env.run("nope")
    env.execute("read", {"path": 5})  # not valid, so it reached no sandbox
    env.upload(b"1", "b")
    env.download("b")
    assert [request.operation for request in env.requests] == ["read", "run", "run", "upload", "download"]
    assert env.requests[0] == operations.Read.model_validate({"path": "a"})


def test_what_a_table_raises_is_not_remembered() -> None:
    answers: list[str | Exception] = [ValueError("not yet"), "ok"]

    def answer(_: FakeRun) -> str:
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    env = FakeEnvironment(commands=answer)
    with pytest.raises(ValueError, match="not yet"):
        env.run("a", request_id="r")
    assert done(env.run("a", request_id="r")).output == "ok"
    assert done(env.run("a", request_id="r")).output == "ok"


def test_notices_and_memory() -> None:
    env = FakeEnvironment(commands={"leak": Ran(left_running=2), "eat": Ran(signal="SIGKILL", oom_killed=True)})
    assert codes_of(env.run("leak")) == ["left_running"]
    assert done(env.kill("c1")).killed == 2
    envelope = env.run("eat")
    assert done(envelope).oom_killed
    assert codes_of(envelope) == ["out_of_memory"]


def test_it_can_die() -> None:
    env = FakeEnvironment({"a": "x"})
    env.lose("out_of_memory", "The sandbox ran out of memory.")
    refused(env.read("a"), "sandbox_unavailable", "out of memory", effects="unknown")
    refused(env.upload(b"", "b"), "sandbox_unavailable", effects="unknown")


def test_pages() -> None:
    env = FakeEnvironment(pages={"http://example.com/": "Example text"})
    page = done(env.browse("http://example.com/", offset=8, max_chars=2))
    assert (page.text, page.total_chars, page.truncated, page.status) == ("te", 12, True, 200)
    refused(env.browse("http://example.org/"), "network_denied", "no network")
    refused(env.browse("http://127.0.0.1:8000/"), "connection_failed", "Connection refused")


def test_it_is_described() -> None:
    assert "fake" in FakeEnvironment().describe()["sandbox"]


def test_a_page_is_refused_in_the_words_of_the_rules() -> None:
    env = FakeEnvironment(network=Network.allow("example.com"))
    refused(env.browse("https://evil.example.net/"), "network_denied", "no rule opens it")
    answer = env.browse("https://example.com/")
    assert not answer.ok
    assert answer.code == "connection_failed"
    env.network = Network.none()
    refused(env.browse("https://example.com/"), "network_denied", "no network")


def test_the_guest_starts_with_the_first_operation_on_files_and_leaves_nothing_behind() -> None:
    env = FakeEnvironment(commands={"ls": "", "long": "x" * 5000})
    done(env.run("ls"))
    backend = env.backend
    assert isinstance(backend, FakeBackend)
    assert backend.workspace is None
    assert env.files == {}
    done(env.write("a", "1"))
    process, folder = backend.process, backend.temporary
    assert process is not None
    assert folder is not None
    del env, backend
    gc.collect()  # nobody has closed it
    assert process.poll() is not None
    assert not os.path.exists(folder)


def test_files_can_be_seen_after_the_end() -> None:
    with FakeEnvironment({"a": "1"}) as env:
        done(env.write("/tmp/b", "2"))
    assert env.files == {"a": b"1", "/tmp/b": b"2"}


def test_paths_are_those_of_a_container() -> None:
    with FakeEnvironment({"a/b": "1"}) as env:
        assert done(env.list("/workspace")).entries[0].path == "a"
        assert done(env.read("/workspace/a/../a/b")).path == "a/b"
        assert done(env.write("~/c", "2")).path == "/home/agent/c"
        assert done(env.read("../home/agent/c")).content == "2"
        refused(env.read("/etc/passwd"), "path_outside_roots", "/workspace, /home/agent, /tmp, /run/gamebox")
        refused(env.read("../../etc/passwd"), "path_outside_roots")
        refused(env.read("a/c"), "path_not_found", "'a/c' does not exist")
        owner = done(env.stat("a"))
        assert (owner.uid, owner.gid, owner.owner) == (1000, 1000, "agent")
    with pytest.raises(ValueError, match="outside of /workspace"):
        FakeEnvironment({"/etc/passwd": ""})
