"""What counts as a difference between two answers, and what is only different each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agent.record.store import StepRecord
from agent.record.volatile import VOLATILE_FIELDS, mask_text
from agent.views.trajectory.comparison import _model_in, answers_differ
from agent.views.trajectory.renames import Renames
from sandbox.messages.waiting import cannot_send, ended_first, timed_out
from sandbox.messages.waiting_for import Kind, WaitingFor
from sandbox.operations import OPERATIONS
from sandbox.text.wording import Wording

AT, LATER = "2026-11-22T23:59:58.000+00:00", "2026-11-24T07:01:02.000+00:00"
# Fields that count. What is in neither list is not decided yet.
COUNTING = {
    "RunResult": {
        "id", "exit_code", "signal", "oom_killed", "oom_victim", "output", "stdout", "stderr", "stdout_bytes", "stderr_bytes",
        "encoding_errors", "truncated", "spill_truncated", "left_running", "running", "cwd",
    },
    "OomVictim": {"program"},
    "LogsResult": {
        "id", "content", "content_bytes", "encoding_errors", "running", "exit_code", "signal", "stop_reason", "left_running",
    },
    "KillResult": {"id", "signal", "survivors", "already_ended", "collateral"},
    "EndSessionResult": {"session", "existed"},
    "ReadResult": {
        "path", "content", "size_bytes", "total_lines", "start_line", "end_line", "offset", "next_offset", "truncated", "binary",
        "encoding_errors",
    },
    "WriteResult": {"path", "size_bytes", "created"},
    "EditResult": {"path", "replacements", "size_bytes", "first_line", "diff", "candidates"},
    "Candidate": {"start_line", "end_line", "text", "similarity"},
    "ListDetailsResult": {"path", "entries", "truncated"},
    "ListResult": {"path", "entries", "total_entries", "truncated"},
    "Entry": {"path", "type", "size_bytes", "target"},
    "SearchResult": {
        "matches", "files_with_matches", "truncated", "total_matches", "ignored", "binary", "unreadable", "left_out_files",
        "left_out_unknown", "engine",
    },
    "StatResult": {"path", "type", "size_bytes", "mode", "uid", "gid", "owner", "group", "attributes", "link_target"},
    "OpenSessionResult": {"session", "cwd"},
    "SessionsResult": {"sessions"},
    "SessionState": {"name", "cwd", "busy"},
    "Match": {"path", "line", "text", "before", "after"},
    "MakeDirResult": {"path", "created"},
    "MoveResult": {"source", "target"},
    "DeleteResult": {"path", "entries_deleted"},
    "UploadResult": {"path", "files", "size_bytes"},
    "DownloadResult": {"path", "kind", "files", "size_bytes", "content", "skipped"},
    "ScreenResult": {
        "id", "text", "rows", "cols", "cursor_row", "cursor_col", "cursor_hidden", "title", "running", "exit_code", "signal",
    },
    "SendResult": {"id", "output", "running", "exit_code", "signal", "terminal", "screen"},
    "ResizeResult": {"id", "rows", "cols"},
    "BrowseResult": {
        "url", "final_url", "status", "content_type", "title", "text", "links", "offset", "truncated", "redirects", "browser",
        "outline", "outline_truncated", "console", "failed_requests", "dialogs", "dialog", "tabs",
    },
    "ConsoleMessage": {"level", "text", "place"},
    "FailedRequest": {"method", "url", "problem"},
    "PageDialog": {"type", "message"},
    "PageTab": {"number", "url", "current"},
    "InteractResult": {
        "steps", "final_url", "status", "title", "outline", "outline_truncated", "console", "failed_requests", "dialogs", "dialog",
        "tabs",
    },
    "StepResult": {"action", "what", "changes", "value", "path", "size_bytes"},
    "ScreenshotResult": {"final_url", "width", "height", "truncated"},
    "Link": {"text", "url"},
    "ProcessesResult": {"commands", "more_commands", "memory_limit_bytes", "pids_limit"},
    "ListedCommand": {"id", "command", "session", "background", "running", "exit_code", "signal", "stop_reason"},
    "UsageResult": {"memory_limit_bytes", "process_limit", "places", "running", "network_limit_bytes"},
    "PlaceUsage": {"path", "size_bytes"},
    "WaitForResult": {
        "condition", "address", "path", "line", "groups", "id", "running", "exit_code", "signal", "stop_reason", "left_running",
        "last_output",
    },
}  # fmt: skip


def models(kind: type[BaseModel]) -> set[type[BaseModel]]:
    """The model, and those of its fields that count."""
    passing = VOLATILE_FIELDS.get(kind.__name__, frozenset())
    inner = {_model_in(field.annotation) for name, field in kind.model_fields.items() if name not in passing}
    return {kind}.union(*(models(each) for each in inner if each is not None))


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_each_field_of_each_result_is_decided(operation: str) -> None:
    for model in models(OPERATIONS[operation].result):
        name, passing = model.__name__, VOLATILE_FIELDS.get(model.__name__, frozenset())
        assert passing | COUNTING[name] == set(model.model_fields), name
        assert not passing & COUNTING[name], name


def step(result: Any, tool: str = "run", *, at: str = AT, notices: Any = (), **envelope: Any) -> StepRecord:
    told = {
        "tool_executed": True,
        "result": result,
        "timestamp": at,
        "duration_ms": 1.0,
        "notices": list(notices),
        **envelope,
    }
    return StepRecord.of(1, tool=tool, args={}, envelope=told)


def same(one: str, other: str) -> bool:
    return answers_differ(step({"output": one}), step({"output": other}, at=LATER), Renames()) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 passed in 0.12s", "3 passed in 2.50s"),
        ("real\t0m0.002s", "real\t0m1.117s"),
        ("2 ms", "2 ms"),
        ("took 3 ms", "took 3 ms"),
        ("at 23:59:58", "at 07:01:02"),
        ("Sun Nov 22 23:59:58 UTC 2026", "Tue Nov 24 07:01:02 UTC 2026"),
        ("2026-11-22T23:59:58.123Z done", "2026-11-24T07:01:02Z done"),
        ("-rw 1 u u 3 Nov 22 23:59 a", "-rw 1 u u 3 Nov 24 07:01 a"),
        ('"GET /" 22/Nov/2026 23:59:58', '"GET /" 24/Nov/2026 07:01:02'),
        ("1795391998", "1795503662.25"),
        ("on port 42425 (http://127.0.0.1:42425/)", "on port 45333 (http://127.0.0.1:45333/)"),
        ("[1] 234", "[1] 77"),
        ("/tmp/tmp.aB3dE9xYz0", "/tmp/tmp.Q1w2E3r4T5"),
        ("/tmp/tmpab12_xyz/f", "/tmp/tmpzz99kkkk/f"),
        ("pid 12", "pid 99"),
        ("[main 1a2b3c4] fix", "[main 9f8e7d6] fix"),
        (f"commit {'a1' * 20}", f"commit {'b2' * 20}"),
        ("<C object at 0x7f01aabbccdd>", "<C object at 0x7f99aabbccdd>"),
        ("c56a4180-65aa-42ec-a945-5fd21dec0538", "0b0dcd0e-9ad1-4b1c-8d0a-9e1d2ac4f001"),
    ],
)
def test_what_is_different_each_time(one: str, other: str) -> None:
    assert same(one, other), (mask_text(one, AT), mask_text(other, LATER))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 passed", "2 passed"),
        ("3 passed in 0.12s", "2 passed in 0.12s"),
        ("wait 5 seconds", "wait 7 seconds"),
        ("8 min", "9 min"),
        ("released 2024-01-01", "released 2025-01-01"),
        ("port 8000", "port 8001"),
        ("http://a:8000/", "http://a:8001/"),
        ("12345", "54321"),
        ("0xdeadbeef", "0xcafebabe"),
        ("/tmp/output.txt", "/tmp/result.txt"),
        ("/tmp/report1", "/tmp/report2"),
        (f"{'a1' * 32}  file", f"{'b2' * 32}  file"),
        (f"{'a1' * 20}  file", f"{'b2' * 20}  file"),
        ("1000000000", "1000000001"),
        ("c1 = 1", "c2 = 1"),
        ("v1.2.3", "v1.2.4"),
        ("a\u2028b", "a\u2028c"),
        ("a\r\nb", "a\nb"),
        ("1.5 GB", "2.5 GB"),
        ("", "x"),
        ("index 1a2b3c4..5d6e7f8", "index 1a2b3c4..5d6e7f9"),
    ],
)
def test_what_counts(one: str, other: str) -> None:
    assert not same(one, other), (mask_text(one, AT), mask_text(other, LATER))


@given(st.text(), st.text())
def test_a_text_is_the_same_as_itself_and_as_no_other(one: str, other: str) -> None:
    assert same(one, one)
    if mask_text(one, AT) != mask_text(other, LATER):
        assert not same(one, other)


@pytest.mark.parametrize(
    ("then", "now", "lines"),
    [
        ({"exit_code": 0}, {"exit_code": 1}, ("-exit_code: 0", "+exit_code: 1")),
        ({"signal": None}, {"signal": "SIGKILL"}, ('+signal: "SIGKILL"',)),
        ({"cwd": "/workspace"}, {"cwd": "/workspace/sub"}, ('-cwd: "/workspace"', '+cwd: "/workspace/sub"')),
        ({"output": "a\u2028b\nc\n"}, {"output": "a\u2028b\nd\n"}, ("@@ output", " a\u2028b", "-c", "+d", " ")),
        ({"output": "-- x\ny"}, {"output": "y\n"}, ("@@ output", "--- x", " y", "+")),
    ],
)
def test_a_difference_says_where_it_is(then: Any, now: Any, lines: tuple[str, ...]) -> None:
    found = answers_differ(step(then), step(now), Renames())
    assert found is not None
    assert tuple(line for line in found.lines if line != " None") == lines


def test_gauges_do_not_count_and_limits_do() -> None:
    then = {
        "uptime_seconds": 3.0,
        "memory_limit_bytes": 5,
        "places": [{"path": "/tmp", "free_bytes": 1, "size_bytes": 9}],
    }
    now = {
        "uptime_seconds": 9.0,
        "memory_limit_bytes": 5,
        "places": [{"path": "/tmp", "free_bytes": 7, "size_bytes": 9}],
    }
    assert answers_differ(step(then, "usage"), step(now, "usage"), Renames()) is None
    assert answers_differ(step(then, "usage"), step({**now, "memory_limit_bytes": 6}, "usage"), Renames()) is not None
    smaller = {**now, "places": [{"path": "/tmp", "free_bytes": 7, "size_bytes": 8}]}
    assert answers_differ(step(then, "usage"), step(smaller, "usage"), Renames()) is not None


def test_ids_may_be_others_but_always_the_same_ones() -> None:
    names = Renames()
    assert answers_differ(step({"id": "c1"}), step({"id": "c4"}), names) is None
    assert answers_differ(step({"id": "c2"}), step({"id": "c5"}), names) is None
    assert names.rename_args({"id": "c1", "command": "c1", "more": [{"id": "c2"}]}) == {
        "id": "c4", "command": "c1", "more": [{"id": "c5"}],
    }  # fmt: skip
    assert answers_differ(step({"output": "ended: c1"}), step({"output": "ended: c4"}), names) is None
    assert answers_differ(step({"output": "x = c1"}), step({"output": "x = c1"}), names) is None
    assert answers_differ(step({"id": "c1"}, "kill"), step({"id": "c5"}, "kill"), names) is not None
    assert answers_differ(step({"output": "ended: c1"}), step({"output": "ended: c5"}), names) is not None


def test_given_ports_are_put_into_later_decisions() -> None:
    names = Renames()
    assert answers_differ(step({"output": "on 127.0.0.1:42425"}), step({"output": "on 127.0.0.1:45333"}), names) is None
    assert names.rename_args({"url": "http://127.0.0.1:42425/x", "port": 1}) == {
        "url": "http://127.0.0.1:45333/x",
        "port": 1,
    }
    listening = [
        {"code": "server_listening", "message": f"A server now listens on port {port}."} for port in (50000, 50001)
    ]
    then, now = (step({}, notices=[each]) for each in listening)
    assert answers_differ(then, now, names) is None
    assert names.rename_args("curl localhost:50000") == "curl localhost:50001"


def test_output_of_what_still_runs_may_have_come_further() -> None:
    def logs(content: str, *, running: bool = True) -> StepRecord:
        return step({"content": content, "running": running}, "logs")

    assert answers_differ(logs("one\n"), logs("one\ntwo\n"), Renames()) is None
    assert answers_differ(logs("one\n"), logs("two\n"), Renames()) is not None
    assert answers_differ(logs("one\n", running=False), logs("one\ntwo\n", running=False), Renames()) is not None
    killed: Any = {"tool_executed": False, "code": "timeout", "error": "It ran longer than 1 s."}
    assert answers_differ(step({"output": "a"}, **killed), step({"output": "ab"}, **killed), Renames()) is None


def test_what_a_killed_command_was_doing_does_not_count_and_the_rest_of_its_timeout_does() -> None:
    kinds: tuple[Kind, ...] = ("sleep", "stdin", "socket", "cpu", "lock")
    waits = [WaitingFor(kind=kind, pid=8, program="a", detail="ends. Here") for kind in kinds]
    doing = (None, *waits)

    def killed(at: int = 0, seconds: float = 1.0, code: str = "timeout", **fields: Any) -> StepRecord:
        error = str(timed_out({"seconds": seconds, "wait": doing[at], **fields}).message)
        return step({}, tool_executed=False, code=code, error=error, effects="unknown")

    for other in (*map(killed, range(len(doing))), killed(ports=[8000]), killed(1, reads_end=True)):
        assert answers_differ(killed(), other, Renames()) is None
        assert answers_differ(other, killed(), Renames()) is None
    for other in (killed(1, 2.0), killed(1, survivors=2), killed(1, code="cancelled"), step({})):
        assert answers_differ(killed(1), other, Renames()) is not None

    def told(word: Callable[[Any], Wording], at: int, **fields: Any) -> StepRecord:
        error = word({"id": "c1", "reason": "timeout", "seconds": 3, "wait": doing[at], **fields}).message
        return step({}, tool_executed=False, code="command_ended", error=str(error), effects="none")

    for word in (cannot_send, ended_first):
        for at in range(len(doing)):
            assert answers_differ(told(word, 0, port=80), told(word, at, port=80), Renames()) is None
        assert answers_differ(told(word, 1), told(word, 1, seconds=4), Renames()) is not None
    assert answers_differ(told(ended_first, 1, port=80), told(ended_first, 2, port=81), Renames()) is not None


def test_notices_count_unless_they_are_of_time_and_room() -> None:
    denied = {"code": "network_denied", "message": "example.com:443 was refused"}
    assert answers_differ(step({}), step({}, notices=[denied]), Renames()) is not None
    assert (
        answers_differ(step({}), step({}, notices=[{"code": "lifetime_ending", "message": "5 min"}]), Renames()) is None
    )
    cut = [{"code": "output_cut", "message": f"{n} bytes"} for n in (1, 2)]
    assert answers_differ(step({}, notices=cut[:1]), step({}, notices=cut[1:]), Renames()) is None
    assert answers_differ(step({}, notices=cut[:1]), step({}), Renames()) is not None
