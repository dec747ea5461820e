"""What adapters of other frameworks need beside a model's tools (FOREIGN: "Where the API made it hard")."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path
from typing import Any

import pytest

from agent import Action
from sandbox import AsyncEnvironment, FakeEnvironment, Limits, LocalEnvironment, SandboxError
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.errors import ErrorCode
from sandbox.operations import OPERATIONS, schema_of

from .checks import done, refused


def test_stat_says_the_size_before_a_download(env: SandboxedEnvironment, folder: str) -> None:
    """FOREIGN 7: a reader with a limit of its own had to take the whole file first."""
    done(env.write(f"{folder}/file", "12345"))
    found = done(env.stat(f"{folder}/file"))
    assert (found.type, found.size_bytes, found.mode, found.link_target) == ("file", 5, 0o644, None)
    assert done(env.stat(folder)).type == "directory"
    assert done(env.stat(".")).type == "directory"
    refused(env.stat(f"{folder}/missing"), "path_not_found")
    refused(env.stat("/etc/passwd"), "path_outside_roots")
    refused(env.stat("a\0b"), "path_invalid")


@pytest.mark.needs("shell", "debian")
def test_stat_of_links_and_owners(env: SandboxedEnvironment, folder: str) -> None:
    made = "printf 123 > f; chmod 4640 f; touch -d @1000000.5 f; ln -s f to; ln -s nowhere gone; ln -s /etc/passwd out"
    done(env.run(f"{made}; mkfifo pipe", cwd=folder))
    link = done(env.stat(f"{folder}/to"))
    assert (link.type, link.size_bytes, link.mode, link.link_target) == ("file", 3, 0o4640, "f")
    assert link.mtime_seconds == pytest.approx(1000000.5)
    owner = done(env.run("id -u; id -g; id -un")).output.split()
    assert [str(link.uid), str(link.gid), link.owner] == owner
    for name, target in (("gone", "nowhere"), ("out", "/etc/passwd")):
        found = done(env.stat(f"{folder}/{name}"))
        assert (found.type, found.link_target) == ("symlink", target)
    assert done(env.stat(f"{folder}/pipe")).type == "other"
    assert link.to_text().startswith("-rwSr----- ") or link.to_text().startswith("-rwS")


@pytest.mark.needs("shell")
def test_the_status_a_shell_would_show(env: SandboxedEnvironment) -> None:
    """FOREIGN 6: after a signal, ``exit_code`` is None; four adapters turned the name into 128+n."""
    for command, code, signal, status in (
        ("exit 7", 7, None, 7), ("kill -9 $$", None, "SIGKILL", 137), ("kill -TERM $$", None, "SIGTERM", 143),
        ("kill -35 $$", None, "SIG35", 163),
    ):  # fmt: skip
        ran = done(env.run(command, session=None))
        assert (ran.exit_code, ran.signal, ran.shell_status) == (code, signal, status)
        assert env.logs(ran.id).unwrap().shell_status == status
    assert done(env.run("sleep 5", background=True)).shell_status is None


@pytest.mark.needs("commands")
def test_sessions_as_objects(env: SandboxedEnvironment) -> None:
    """FOREIGN (SWE-ReX): sessions were implicit; existence, "exists already" and "does not exist" were the adapter's to keep."""
    session = env.session("explicit")
    assert not session.exists()
    refused(session.run("true"), "session_not_found", "'explicit'")
    refused(session.close(), "session_not_found")
    with session:
        assert session.exists()
        refused(session.open(), "session_exists", "'explicit'")
        with pytest.raises(SandboxError) as caught, env.session("explicit"):
            """Never entered."""
        assert caught.value.code is ErrorCode.session_exists
        done(session.run("true"))
        assert [each.name for each in done(env.sessions()).sessions].count("explicit") == 1
    assert not session.exists()
    refused(session.run("true"), "session_not_found")


@pytest.mark.needs("shell")
def test_a_session_keeps_its_folder_until_it_is_closed(env: SandboxedEnvironment, folder: str) -> None:
    with env.session("kept-folder") as session:
        done(session.run(f"cd {folder}; export MARK=here"))
        assert done(session.run("basename $PWD; echo $MARK")).output == f"{folder}\nhere\n"
    done(session.open())
    assert done(session.run("echo ${MARK-none}")).output == "none\n"
    done(session.close())


def test_sessions_with_asyncio() -> None:
    async def main() -> None:
        async with AsyncEnvironment(LocalEnvironment()) as env, env.session("s") as session:
            assert await session.exists()
            refused(await session.open(), "session_exists")
            assert done(await session.run("echo x")).output == "x\n"
            done(await session.close())
            refused(await session.run("true"), "session_not_found")
            assert done(await env.stat(".")).type == "directory"

    asyncio.run(main())


@pytest.mark.needs("shell")
@pytest.mark.parametrize(
    ("command", "line"),
    [("if true; fi", 1), ("echo (", 1), ("true\nfi", 2), ("echo a; echo 'b", 1), ("a=(1 2", 1), ("echo done; exit 2", None),
     ("echo 'syntax error' >&2; exit 2", None), ("bash -c fi", None), ("echo $((1+))", None)],
)  # fmt: skip
def test_a_syntax_error_of_a_command_has_a_code(env: SandboxedEnvironment, command: str, line: int | None) -> None:
    """FOREIGN (SWE-ReX): a syntax error had no code of its own, and an unclosed quote showed lines of ours."""
    answer = env.run(command, session=None)
    assert "__gamebox" not in done(answer).output
    told = [notice.message for notice in answer.notices if notice.code == "syntax_error"]
    assert told == ([] if line is None else [f"The shell could not parse line {line} of the command."])


@pytest.mark.needs("shell")
def test_a_syntax_error_loses_nothing_of_the_session(env: SandboxedEnvironment) -> None:
    with env.session("unclosed") as session:
        session.run("cd /tmp; export A=kept").unwrap()
        session.run("echo 'b").unwrap()
        assert done(session.run("pwd; echo $A")).output == "/tmp\nkept\n"


@pytest.mark.needs("shell", "debian")
def test_output_as_an_iterator(env: SandboxedEnvironment) -> None:
    """Trials II 4: an iterator over output was there for asyncio alone."""
    output = env.stream("for i in 1 2 3; do echo $i; echo e$i >&2; done; exit 4", session=None)
    chunks = list(output)
    assert "".join(c.text for c in chunks if c.stream == "stdout") == "1\n2\n3\n"
    assert "".join(c.text for c in chunks if c.stream == "stderr") == "e1\ne2\ne3\n"
    assert output.envelope is not None
    assert done(output.envelope).exit_code == 4
    # The local case sees the processes of other workers' tests.
    seconds = os.getpid() * 1000 + 17
    for _ in env.stream(f"echo first; exec sleep {seconds}", session=None):
        break
    assert done(env.run(f"pgrep -f '[s]leep {seconds}' | wc -l", session=None)).output == "0\n"
    with env.stream("yes", session=None) as endless:
        assert "y\n" in next(iter(endless)).text
    refused(endless.envelope, "cancelled", effects="unknown")  # type: ignore[arg-type]
    failed = env.stream("true", timeout_seconds=-1)
    assert list(failed) == []
    refused(failed.envelope, "invalid_arguments")  # type: ignore[arg-type]


@pytest.mark.needs("shell", "forwards")
def test_a_forwarded_port_ends_with_its_block(env: SandboxedEnvironment) -> None:
    """FOREIGN 9: ``with env.forward(8000).unwrap() as f`` raised TypeError."""
    if isinstance(env, LocalEnvironment):
        return
    with env.forward(8765).unwrap() as forward:
        assert forward in env.forwards()
        assert forward.url.startswith("http://127.0.0.1:")
    assert forward.closed


def test_a_download_over_a_file(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    """UX: ``download(to=existing file)`` is refused, without ``overwrite=``."""
    done(env.write(f"{folder}/file", "new"))
    there = tmp_path / "there"
    there.write_text("old")
    refused(env.download(f"{folder}/file", there), "path_exists", "overwrite=True")
    assert there.read_text() == "old"
    assert done(env.download(f"{folder}/file", there, overwrite=True)).saved_to == str(there)
    assert there.read_text() == "new"
    refused(env.download(f"{folder}/missing", there, overwrite=True), "path_not_found")
    refused(env.download(folder, there, overwrite=True), "path_exists", "is a file on the host")
    (tmp_path / "link").symlink_to(there)
    done(env.write(f"{folder}/file", "newer"))
    done(env.download(f"{folder}/file", tmp_path / "link", overwrite=True))
    assert (there.read_text(), (tmp_path / "link").read_text()) == ("new", "newer"), "written through a link"
    (tmp_path / "folder").mkdir()
    refused(env.download(f"{folder}/file", tmp_path / "folder", overwrite=True), "path_exists")
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "there"]


def test_a_command_without_a_deadline() -> None:
    """FOREIGN 5: there was no spelling for it; adapters wrote 86400."""
    with LocalEnvironment(limits=Limits(timeout_seconds=0.2)) as bounded:
        for spelling in (math.inf, "unlimited"):
            refused(bounded.run("true", timeout_seconds=spelling), "invalid_arguments", "lifetime_seconds")
        refused(bounded.run("sleep 5"), "timeout", effects="unknown")
        with pytest.raises(TypeError, match="timeout_seconds"):
            bounded.run("true", timeout_seconds="never")  # type: ignore[arg-type]
    limits = Limits(timeout_seconds=0.2, max_timeout_seconds=0.2, lifetime_seconds=600)
    with LocalEnvironment(limits=limits) as env:
        assert done(env.run("sleep 0.5; echo done", timeout_seconds=math.inf)).output == "done\n"
        assert done(env.execute("run", {"command": "sleep 0.3; echo done", "timeout_seconds": "unlimited"})).output == "done\n"
        refused(env.run("sleep 5"), "timeout", effects="unknown")


def test_a_command_without_a_deadline_ends_with_its_sandbox() -> None:
    with LocalEnvironment(limits=Limits(lifetime_seconds=1.0)) as env:
        refused(env.run("sleep 60", timeout_seconds=math.inf), "sandbox_unavailable", effects="unknown")


def test_what_only_the_host_s_program_may_ask_for() -> None:
    """No model is told of these arguments, and one that guesses them is refused."""
    env = FakeEnvironment(commands={"true": ""})

    def asked(operation: str, args: dict[str, Any]) -> Any:
        action = Action(operation, lambda **_: None, operation, {})
        action.operation = operation  # type: ignore[attr-defined]
        return env.execute_action(action, args)

    assert asked("run", {"command": "true"})["tool_executed"]
    for name, value in (
        ("user", "root"), ("user", None), ("needs_session", True), ("timeout_seconds", math.inf), ("timeout_seconds", "unlimited"),
    ):  # fmt: skip
        answer = asked("run", {"command": "true", name: value})
        assert (answer["tool_executed"], answer["code"]) == (False, "invalid_arguments")
        assert name in answer["error"]
    for kind in OPERATIONS.values():
        assert not kind.host_only() & set(schema_of(kind)["properties"])
    assert "unlimited" not in str(schema_of(OPERATIONS["run"]))


READ_ROOTS = (["relative"], ["/a/../b"], ["/a\0b"], [1])


@pytest.mark.parametrize("folders", READ_ROOTS)
def test_read_roots_that_are_no_folders(folders: Any) -> None:
    with pytest.raises(SandboxError) as caught:
        LocalEnvironment(read_roots=folders)
    assert caught.value.code is ErrorCode.invalid_configuration
    assert repr(folders[0]) in caught.value.message


def test_reading_outside_the_roots_on_request(tmp_path: Path) -> None:
    """FOREIGN 3 (inspect's test_read_file_is_directory): no file outside the roots could be read, whatever commands can read."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_text("known\n")
    (tmp_path / "beside").write_text("hidden\n")
    with LocalEnvironment(read_roots=[str(tmp_path / "inside")]) as env:
        path = str(tmp_path / "inside" / "file")
        assert done(env.read(path)).content == "known\n"
        assert done(env.download(path)).content == b"known\n"
        assert done(env.stat(path)).size_bytes == 6
        assert [entry.path for entry in done(env.list(str(tmp_path / "inside"))).entries] == [path]
        assert len(done(env.search("known", str(tmp_path / "inside"))).matches) == 1
        refused(env.read(str(tmp_path / "inside")), "is_a_directory")
        refused(env.read(str(tmp_path / "beside")), "path_outside_roots")
        refused(env.read(f"{tmp_path}/inside/../beside"), "path_outside_roots")
        refused(env.write(path, "x"), "path_outside_roots")
        refused(env.edit(path, "known", "x"), "path_outside_roots")
        refused(env.delete(path), "path_outside_roots")
        refused(env.move(path, "mine"), "path_outside_roots")
        refused(env.upload(b"x", path), "path_outside_roots")
        assert str(tmp_path / "inside") in env.describe()["sandbox"]
