"""A short run of the fuzz targets with a fixed seed, and what longer ones have found; ``make fuzz FRAMES=…`` runs more."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sandbox import LocalEnvironment
from sandbox.errors import ErrorCode, OperationError, SandboxUnavailableError
from sandbox.guest.loop.operations import check_arguments
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.faults import Fault
from sandbox.guest.protocol.records import FOLDER, HOME, WANTED, WORKSPACE
from sandbox.guest.protocol.wire import Kind
from sandbox.state.history import History
from sandbox.state.table import Entry, pack
from sandbox.testing import GuestRequest, ScriptedGuest
from tests.unit.sandbox.pipe.talking import fails, talk

from . import host
from .__main__ import replay
from .conversations import NONCE, load
from .found import Counts, Found
from .mutants import FuzzedEnvironment, MutantStream
from .reached import PARSERS, measure

SEED = 7
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("target", "frames"), [("host", 4000), ("guest", 1500), ("launcher", 8000)])
def test_a_short_run(target: str, frames: int) -> None:
    """In a process of its own: threads and descriptors of the tests before it would come and go in its figures."""
    command = [sys.executable, "-m", "tests.fuzz", "run", "--json", "--target", target, "--seed", str(SEED)]
    command += ["--frames", str(frames), "--seconds", "60"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    report = json.loads(run.stdout)
    assert (run.returncode, report["found"]) == (0, 0), run.stderr
    assert report["frames"] >= min(frames, 1000)
    # One that was closed late, after the first count, is no growth.
    assert max(report["grown"]["descriptors"], report["grown"]["threads"]) <= 0


def test_what_was_really_said_is_answered_as_it_was() -> None:
    """The targets do not simply refuse everything: without mutations each call ends as when it was recorded."""
    counts = Counts()
    for exchange in load()[1]:
        stream = MutantStream()
        target = host.HostTarget(load()[0], [exchange])
        target._load(Random(1), stream, target._greeting, False, [])
        env = FuzzedEnvironment(stream)
        with env:
            told: list[Any] = []
            target._load(Random(1), stream, exchange, False, told)
            counts.endings[host.make_call(env, exchange.method, exchange.args, told, exchange.ok)] += 1
    assert set(counts.endings) == {"ok", "fault"}
    assert counts.endings["ok"] > counts.endings["fault"]


def test_what_goes_wrong_is_kept_and_can_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bad = wire.frame(NONCE, 1, Kind.REPLY, 1, wire.pack_message({"result": {"path": "x", "files": "many"}}))
    hello = wire.frame(NONCE, 0, Kind.HELLO, 0, wire.pack_message({"protocol": wire.PROTOCOL}))
    conversation: list[Any] = [["hello", {}, [[hello.hex()]]], ["read", {"path": "x"}, [[bad.hex(), ""]]]]
    kept = Found("it went wrong", conversation).keep("host", 1, 2)
    assert json.loads(kept.read_text())["what"] == "it went wrong"
    assert replay(kept) == 0  # a result that is none is refused


@pytest.mark.parametrize("target", ["host", "guest"])
def test_what_a_run_reaches_is_measured(target: str) -> None:
    """Guests are processes of their own, which end in ways that coverage.py does not see by itself."""
    table = measure(target, 60, SEED)
    reached = dict(line.split()[:2] for line in table.splitlines() if line.startswith("sandbox/"))
    assert set(reached) == set(PARSERS[target])
    lines = {name: [int(n) for n in counts.split("/")] for name, counts in reached.items()}
    taken = {"host": "sandbox/pipe/transport.py", "guest": "sandbox/guest/loop/dispatch.py"}[target]
    assert lines[taken][0] > lines[taken][1] // 2


# --- what was found ------------------------------------------------------------------------------------------------------------
def _answer(fields: dict[str, Any], operation: str = "read", blob: bytes = b"") -> Any:
    stream = MutantStream()
    env = FuzzedEnvironment(stream)
    for n, (kind, said) in enumerate([(Kind.HELLO, {"protocol": wire.PROTOCOL}), (Kind.REPLY, fields)]):
        data = wire.frame(NONCE, n, kind, n, wire.pack_message(said, blob, exact=True, any_number=True))
        stream.answers.append(lambda channel, sequence, nonce, data=data: ([data], 0))  # type: ignore[misc]
    with env:
        return env.execute(operation, {"path": "x"} if operation == "read" else {"command": "true"})


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\uD9ff x"', "NaN", "-Infinity"])
def test_json_that_nobody_could_be_shown_is_refused(text: str) -> None:
    encoded = b'{"result":{"path":' + text.encode() + b"}}"
    with pytest.raises(wire.WireError):
        wire.unpack_message(len(encoded).to_bytes(4, "big") + encoded)
    encoded = '{"path":"\ud800"}'.encode("utf-8", "surrogatepass")
    with pytest.raises(wire.WireError):
        wire.unpack_message(len(encoded).to_bytes(4, "big") + encoded)
    assert wire.unpack_message(len(encoded).to_bytes(4, "big") + encoded, exact=True)[0] == {"path": "\ud800"}


def test_text_that_only_looks_like_a_surrogate_is_text() -> None:
    message = wire.pack_message({"content": "\\ud800 and \\uD800"})
    assert wire.unpack_message(message)[0] == {"content": "\\ud800 and \\uD800"}


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_numbers_beyond_all_bounds_are_worded(number: int) -> None:
    notice = {"code": "out_of_memory", "limit": number, "kills": number}
    answer = _answer({"result": {"path": "x"}, "notices": [notice]})
    assert answer.ok
    assert [n.code for n in answer.notices] == ["out_of_memory"]


def test_infinite_results_are_no_answer() -> None:
    result = {"id": "c1", "exit_code": 0, "output_bytes": 0, "truncated": False, "duration_ms": 1e308}
    for wrong in ({"duration_ms": "1e999"}, {"output_bytes": 1e308}):
        answer = _answer({"result": {**result, **wrong}, "segments": []}, "run")
        assert answer.code is ErrorCode.sandbox_unavailable


@pytest.mark.parametrize("roots", [[], [HOME]])
def test_a_scan_without_the_folders_asked_for_is_no_answer(roots: list[int]) -> None:
    """Rolling back looked for the workspace's own entry after all was done, and ended with a KeyError."""
    entries = [Entry(root, FOLDER, 0o755, 0, 0, 0, 0, 0, 1, 1, 1, b"", b"") for root in roots]

    def ask(operation: str, args: Any, *, timeout_seconds: float, sink: Any) -> tuple[dict[str, Any], bytes]:
        if entries:
            sink(pack(entries))
        return {"result": {"clock_ns": 1, "running": [], "unread": [], "sessions": {}}}, b""

    with pytest.raises(SandboxUnavailableError):
        History(ask, 1 << 20).scan((WORKSPACE, HOME))


@pytest.mark.parametrize("asked", [b"\0", WANTED.pack(WORKSPACE, 9) + b"a.txt", WANTED.pack(WORKSPACE, 2) + b"a\0"])
def test_a_list_of_files_that_is_none_is_refused_by_the_guest(asked: bytes) -> None:
    """It was a mistake of the guest's own, with a traceback in its log."""
    with LocalEnvironment() as env, pytest.raises(OperationError) as caught:
        env.state.history._ask_checked("fetch", {}, 10.0, body=(asked,), sink=lambda data: None)
    assert caught.value.code is ErrorCode.invalid_arguments


def test_a_second_greeting_ends_the_pipe() -> None:
    def script(guest: ScriptedGuest, request: GuestRequest) -> None:
        guest.frame(Kind.HELLO, request.channel, wire.pack_message({"protocol": wire.PROTOCOL}))

    with talk(script) as (transport, _):
        fails(transport, "protocol_violation", "nothing asked for")


def test_typing_what_stands_for_no_bytes_is_refused_and_ends_nothing() -> None:
    """A lone surrogate typed into a command ended the guest with all that ran in it."""
    with LocalEnvironment() as env:
        started = env.run("cat", wait_seconds=0.1).unwrap().id
        refused = env.send(started, "\ud800")
        assert refused.code is ErrorCode.invalid_arguments  # type: ignore[union-attr]
        assert env.send(started, "typed\n", wait_seconds=60).unwrap().output == "typed\n"


WRONG: list[tuple[Any, dict[str, Any]]] = [
    ("run", {}),
    ("run", {"command": "true", "keep_output_bytes": -1}),
    ("run", {"command": "true", "keep_output_bytes": 1, "timeout_seconds": 1e12}),
    ("run", {"command": "true", "keep_output_bytes": 1, "pty": True, "rows": 70_000, "cols": 1}),
    ("run", {"command": "true", "keep_output_bytes": 1, "pty": True}),
    ("run", {"argv": [], "keep_output_bytes": 1}),
    ("run", {"argv": ["\ud800"], "keep_output_bytes": 1}),
    ("run", {"command": "true", "keep_output_bytes": 1, "env": {"A": 1}}),
    ("logs", {"id": ["c1"], "offset": 0, "max_bytes": 1}),
    ("kill", {"id": "c1", "signal": "SIGNONE"}),
    ("upload", {"path": "x", "mode": 1 << 40}),
    ("list", {"path": None}),
    ("read", {"path": 7}),
]


@pytest.mark.parametrize(("operation", "args"), WRONG)
def test_arguments_are_checked_in_the_guest_too(operation: Any, args: dict[str, Any]) -> None:
    with pytest.raises(Fault) as caught:
        check_arguments(operation, args)
    assert caught.value.code == "invalid_arguments"


@pytest.mark.parametrize("operation", [7, None, ["run"], {}])
def test_operations_that_are_none(operation: Any) -> None:
    with pytest.raises(Fault) as caught:
        check_arguments(operation, {})
    assert caught.value.code == "unknown_tool"


def test_requests_of_the_host_pass_the_guest_s_check() -> None:
    """Both ends agree: what was recorded is never refused for its arguments."""
    for exchange in load()[1]:
        for frame in exchange.sent:
            if frame.kind == Kind.REQUEST:
                check_arguments(frame.fields["operation"], frame.fields["args"])


def test_a_guest_that_cannot_be_greeted_says_so() -> None:
    with pytest.raises(SandboxUnavailableError):
        FuzzedEnvironment(MutantStream()).start()
