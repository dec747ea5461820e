"""A rollback that fails on its way, and one whose guest lies."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

from sandbox import FakeEnvironment, LocalEnvironment
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, OperationError, SandboxUnavailableError
from sandbox.state.fork import fork
from sandbox.state.history import History
from sandbox.state.plan import Plan
from tests.contract.checks import closed, done, refused


@pytest.fixture
def env(tmp_path: Path) -> Iterator[LocalEnvironment]:
    (tmp_path / "w").mkdir()
    with LocalEnvironment(tmp_path / "w") as env:
        yield env


def test_a_stream_that_breaks_off_changes_nothing(env: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    top = Path(env.workspace)
    for name in ("a", "b"):
        (top / name).write_text(name * 300_000)
    made = done(env.checkpoint())
    (top / "a").write_text("now")
    (top / "b").unlink()
    (top / "new").write_text("n")

    def broken(self: History, steps: Plan) -> int:
        def body() -> Iterator[bytes]:
            yield b"".join(steps.stream(lambda e: self.store.pieces(checkpoint.digests[e.key])))[:-200_000]

        checkpoint = self.checkpoints[made.id]
        args = {"path": ".", "sizes": steps.sizes(), "sessions": {}}
        self._ask_checked("restore", args, 20, body=body())
        return 0

    monkeypatch.setattr(History, "restore", lambda self, _, steps: broken(self, steps))
    refused(env.rollback(made.id), "transfer_incomplete")
    assert sorted(os.listdir(top)) == ["a", "new"]
    assert (top / "a").read_text() == "now"
    monkeypatch.undo()
    assert done(env.rollback(made.id)).differs == ()
    assert (top / "b").read_text() == "b" * 300_000


def test_what_is_not_as_it_was_is_said(env: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    top = Path(env.workspace)
    (top / "a").write_text("one")
    made = done(env.checkpoint())
    (top / "a").write_text("two!")
    monkeypatch.setattr(History, "restore", lambda *_: 0)
    failure = refused(env.rollback(made.id), "restore_incomplete", "a", effects="partial")
    assert failure.result is not None
    assert failure.result.differs == ("a",)


def test_a_store_that_fails_keeps_no_checkpoint(env: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(env.workspace) / "a").write_text("one")

    def full(*_: object) -> None:
        raise OperationError(
            ErrorCode.host_disk_full, "The host could not store the files: No space left.", "Free space."
        )

    monkeypatch.setattr("sandbox.state.store.Store._taken", full)
    refused(env.checkpoint("a"), "host_disk_full")
    monkeypatch.undo()
    assert done(env.checkpoints()).checkpoints == ()
    assert done(env.checkpoint("a")).files == 1


def test_names_that_escape_in_a_restore_are_refused(env: LocalEnvironment) -> None:
    done(env.checkpoint("a"))
    entry = next(iter(env.state.history.checkpoints["a"].table.entries().values()))
    for path in (b"../out", b"/etc/x", b"a/../../b", b"."):
        steps = Plan(make=[entry._replace(path=path)])
        with pytest.raises(OperationError) as failure:
            env.state.history.restore(env.state.history.checkpoints["a"], steps)
        assert failure.value.code == "path_invalid"
    assert os.listdir(Path(env.workspace).parent) == ["w"]


def test_an_environment_without_files_says_so() -> None:
    for answer in (
        Environment().changes(),
        Environment().checkpoint(),
        Environment().fork(2),
        FakeEnvironment().fork(),
    ):
        refused(answer, "operation_not_supported")


def test_after_the_end_nothing_is_kept(tmp_path: Path) -> None:
    env = LocalEnvironment(tmp_path).start()
    done(env.checkpoint("a"))
    env.close()
    closed(lambda: env.rollback("a"))
    assert env.state.history.checkpoints == {}


def test_a_file_that_is_no_checkpoint_is_refused(env: LocalEnvironment, tmp_path: Path) -> None:
    (Path(env.workspace) / "a").write_text("one")
    done(env.checkpoint("a"))
    done(env.save_checkpoint("a", tmp_path / "good"))
    refused(env.save_checkpoint("a", tmp_path / "good"), "io_error", "good")
    refused(env.load_checkpoint(tmp_path / "none"), "io_error", "none", effects="none")
    used = done(env.checkpoints()).store_bytes
    evil = [tarfile.TarInfo("workspace/../out"), tarfile.TarInfo("elsewhere/x"), tarfile.TarInfo("workspace/a/b")]
    device = tarfile.TarInfo("workspace/dev")
    device.type = tarfile.CHRTYPE
    for member in (*evil, device):
        with tarfile.open(tmp_path / "good") as good, tarfile.open(tmp_path / "bad", "w") as bad:
            bad.addfile(good.getmembers()[0], good.extractfile(good.getmembers()[0]))
            bad.addfile(member)
        refused(env.load_checkpoint(tmp_path / "bad"), "unsafe_archive", "bad")
    (tmp_path / "bad").write_bytes(b"no tar" * 1000)
    refused(env.load_checkpoint(tmp_path / "bad"), "unsafe_archive")
    assert done(env.checkpoints()).store_bytes == used
    assert done(env.load_checkpoint(tmp_path / "good", "again")).files == 1


LIES: dict[str, dict[str, object]] = {
    "no list": {"created": 7},
    "no scan": {"created": []},
    "no numbers": {"running": [], "unread": [], "clock_ns": "x", "sessions": {}},
    "no sessions": {"running": [], "unread": [], "clock_ns": 1, "sessions": 3},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_a_guest_that_lies_is_cut_off(lie: dict[str, object]) -> None:
    history = History(lambda *_, **__: ({"result": lie}, b""), 1 << 20)
    with pytest.raises(SandboxUnavailableError):
        history.scan()
    env = FakeEnvironment()
    env.state.history.ask = history.ask
    if lie.get("created") != []:
        assert env.changes().to_dict()["code"] == "sandbox_unavailable"


def test_texts_of_a_guest_become_valid() -> None:
    env = FakeEnvironment()
    env.state.history.ask = lambda *_, **__: (
        {"result": {"id": "\ud800", "created": ["\udcff" * 9000], "modified": [], "deleted": []}},
        b"",
    )
    changed = done(env.changes("last"))
    assert changed.changes[0].path == "?" * 4096


GOOD = {"cwd": "/", "env": {}, "functions": "", "variables": {}}
HOSTILE: dict[str, tuple[bytes, dict[str, Any]]] = {
    "deep": (b"[" * 200_000, {}),
    "mtime": (b"", {"pax_headers": {"mtime": "9" * 20}}),
    "uid": (b"", {"uid": 1 << 40}),
    "long": (b"", {"name": "workspace/" + "b" * 70_000}),
    "no state": (json.dumps({"version": 1, "sessions": {"a": {}}}).encode(), {}),
    "a list": (json.dumps({"version": 1, "sessions": [["a", GOOD]]}).encode(), {}),
    "types": (json.dumps({"version": 1, "sessions": {"a": {**GOOD, "functions": 7}}}).encode(), {}),
    "many": (json.dumps({"version": 1, "sessions": {str(n): GOOD for n in range(5000)}}).encode(), {}),
}


def saved_as(path: Path, about: bytes, **member: Any) -> Path:
    """A checkpoint's file with an empty file in it, which is as ``member`` says."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        first = tarfile.TarInfo("gamebox.json")
        first.size = len(about)
        archive.addfile(first, io.BytesIO(about))
        for name in ("workspace", "home"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        file = tarfile.TarInfo("workspace/f")
        for name, value in member.items():
            setattr(file, name, value)
        archive.addfile(file)
    return path


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_checkpoint_is_refused(env: LocalEnvironment, tmp_path: Path, case: str) -> None:
    about, member = HOSTILE[case]
    path = saved_as(tmp_path / "evil", about or json.dumps({"version": 1, "sessions": {}}).encode(), **member)
    refused(env.load_checkpoint(path), "unsafe_archive")
    assert done(env.checkpoints()).checkpoints == ()


def test_more_sessions_than_there_may_be_change_nothing(env: LocalEnvironment, tmp_path: Path) -> None:
    sessions = {str(number): GOOD for number in range(100)}
    path = saved_as(tmp_path / "many", json.dumps({"version": 1, "sessions": sessions}).encode())
    done(env.load_checkpoint(path, "many"))
    refused(env.rollback("many"), "too_many_commands")
    assert not (Path(env.workspace) / "f").exists()


def test_states_that_are_none_do_not_end_the_guest(env: LocalEnvironment) -> None:
    done(env.checkpoint("a"))
    broken: list[Any] = [{"a": {}}, {"default": {**GOOD, "functions": 7}}, 5]
    for sessions in broken:
        with pytest.raises(OperationError) as failure:
            env.state.history._ask_checked("restore", {"path": ".", "sizes": [0, 0], "sessions": sessions}, 20, body=())
        assert failure.value.code == "invalid_arguments"
    assert done(env.run("echo alive", session="default")).output == "alive\n"


def test_a_guest_that_tells_without_end_is_stopped(env: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.state.guest_files.MOST_RECORDS", 0)
    monkeypatch.setattr("sandbox.state.guest_files.MOST_PATH_BYTES", 10)
    refused(env.changes(), "too_many_files")
    monkeypatch.undo()
    assert done(env.changes()).created == 0


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing"])
def test_what_is_no_file_is_refused_as_a_checkpoint_at_once(env: LocalEnvironment, tmp_path: Path, kind: str) -> None:
    """A pipe was waited for without end, and ``checkpoint``, ``changes`` and ``close`` with it (trials, D22b)."""
    path = {"pipe": tmp_path / "pipe", "device": Path("/dev/zero"), "folder": tmp_path, "missing": tmp_path / "none"}[
        kind
    ]
    if kind == "pipe":
        os.mkfifo(path)
    code = "io_error" if kind == "missing" else "not_a_regular_file"
    refused(env.load_checkpoint(path), code)


def test_other_calls_go_on_while_sandboxes_are_forked(env: LocalEnvironment) -> None:
    """The lock of the history was held while up to 64 containers were started (review of the sandbox, 5.4)."""
    started, go_on = threading.Event(), threading.Event()

    class Twin(LocalEnvironment):
        def start(self) -> Self:
            started.set()
            assert go_on.wait(20)
            return super().start()

    Path(env.workspace, "file").write_text("forked")
    with ThreadPoolExecutor(1) as pool:
        forked = pool.submit(fork, env.state, Twin, env.state.history, 1, None)
        assert started.wait(10)
        assert done(env.changes()).created == 1
        assert done(env.checkpoint("meanwhile")).files == 1
        go_on.set()
        (twin,) = forked.result().result.environments
    with twin:
        assert done(twin.read("file")).content == "forked"
    assert done(env.delete_checkpoint("meanwhile")).store_bytes == 0
