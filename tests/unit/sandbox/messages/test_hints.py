"""Every fault is worded: one sentence with the offending value, and the next legal step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sandbox
from sandbox.errors import ErrorCode
from sandbox.messages import faults as hints
from sandbox.messages.notices import NOTICES
from sandbox.operations import OPERATIONS
from sandbox.text.wording import duration, size

GUEST = Path(sandbox.__file__).parent / "guest"
# Codes as the guest sends them: by name, or through the table of errno values.
SENT = {
    code
    for path in GUEST.rglob("*.py")
    for code in re.findall(r"(?:Fault\(\s*|errno\.\w+: |\): )\"([a-z_]+)\"", path.read_text())
    if code in ErrorCode.__members__
}
# Values for the placeholders; as the guest sends them.
FIELDS = {
    "path": "src/a.py", "roots": ["/workspace", "/tmp"], "errno": "ENOENT", "size_bytes": 3_250_000, "limit": 1 << 20,
    "count": 3, "candidates": 1, "total_lines": 10, "pattern": "(", "problem": "missing )", "seconds": 2.5, "survivors": 0,
    "id": "c9", "known": ["c1", "c2"], "url": "http://example.com/", "kind": "fifo", "program": "nope", "cwd": "/x",
}  # fmt: skip


def test_the_guest_sends_only_codes_that_exist() -> None:
    assert len(SENT) > 20
    for path in GUEST.rglob("*.py"):
        for code in re.findall(r"Fault\(\s*\"([^\"]+)\"", path.read_text()):
            assert code in ErrorCode.__members__, f"{path.name}: {code}"


@pytest.mark.parametrize("code", sorted(SENT))
@pytest.mark.parametrize("fields", [FIELDS, {}, {"path": "a"}])
def test_wording(code: str, fields: dict[str, object]) -> None:
    wording = hints.word_fault(ErrorCode(code), fields, "read")
    assert re.fullmatch(r"[^\n]+[.]", wording.message), wording
    assert re.fullmatch(r"[A-Z][^\n]+[.?]", wording.hint), wording
    assert wording.next_tool is None or wording.next_tool in OPERATIONS
    if fields is FIELDS:
        assert "None" not in wording.message + wording.hint


@pytest.mark.parametrize(
    ("code", "operation", "said"),
    [
        ("path_not_found", "read", "'src/a.py' does not exist."),
        ("path_outside_roots", "read", "/workspace, /tmp"),
        ("file_too_large", "read", "is 3.1 MiB, the limit for read is 1.0 MiB"),
        ("file_too_large", "write", "append the others with run"),
        ("timeout", "run", "within 2.5 seconds"),
        ("timeout", "search", "within 2.5 seconds"),
        ("timeout", "browse", "above 2.5"),
        ("text_not_unique", "edit", "3 times"),
        ("unknown_command", "logs", "c1, c2"),
        ("is_a_directory", "delete", "recursive=true"),
        ("is_a_directory", "read", "List it"),
        ("range_outside_file", "read", "10 lines"),
        ("invalid_pattern", "search", "missing )"),
        ("io_error", "read", "failed: missing )"),
    ],
)
def test_values_stand_in_the_sentences(code: str, operation: str, said: str) -> None:
    wording = hints.word_fault(ErrorCode(code), FIELDS, operation)
    assert said in f"{wording.message} {wording.hint}"


@pytest.mark.parametrize(
    ("code", "fields", "said"),
    [
        ("kill_failed", {"survivors": 2}, "2 processes of c1 could not be killed. | Call kill again."),
        ("kill_failed", {"survivors": 1, "pid": 9, "program": "cp", "state": "waiting for the disk"},
         "process 9 (cp) is waiting for the disk. | It ends as soon as the kernel lets it."),
        ("kill_failed", {"survivors": 1, "pid": 9, "program": "cp", "tracer": 12, "tracer_id": None},
         "is traced by process 12. | End its tracer first"),
        ("too_many_processes", {"limit": 64, "live": []}, "all 64 processes and threads that this sandbox may have"),
        ("too_many_processes", {"live": ["c3 (make -j64)"]}, "Running: c3 (make -j64)."),
        ("io_error", {"path": "a", "leased": True, "lease_break_seconds": 0},
         "another process holds a lease on it. | Try again later"),
        ("io_error", {"path": "a", "leased": True, "lease_break_seconds": 45, "holder": 9, "program": "cp"},
         "the pid 9 (cp) holds a lease on it. | Try again in 50 seconds: the kernel takes the lease away 45 seconds after"),
        ("no_space", {"path": "a"}, "for 'a'. | Look with du"),
        ("no_space", {"path": "a", "existed": True}, "for 'a'. The file is as it was before. |"),
        ("no_space", {"path": "a", "existed": False}, "for 'a'. No file was made. |"),
        ("no_space", {"path": "d/a", "existed": False, "folder_made": True}, "No file was made; only its folder was made. |"),
        ("path_invalid", {"path": "/tmp", "problem": "it is a root of the sandbox's files"}, "| Name a file or folder in it."),
        ("path_invalid", {"path": "n", "problem": "it has 9000 bytes, and the limit is 4095"}, "| Choose a shorter path."),
    ],
)  # fmt: skip
def test_a_failure_says_what_stands_in_the_way(code: str, fields: dict[str, object], said: str) -> None:
    wording = hints.word_fault(ErrorCode(code), {"id": "c1", **fields}, "run")
    assert said in f"{wording.message} | {wording.hint}"


def test_that_a_link_is_to_be_deleted_is_said_only_to_who_writes() -> None:
    """A read of a link that leads out ended in "delete the link first"."""
    fields = {"path": "a", "link": "a", "target": "/etc/hosts"}
    said = {op: hints.word_fault(ErrorCode.path_outside_roots, fields, op).hint for op in ("read", "write")}
    assert said["read"] == "Commands can follow it: look at what it points to with run."
    assert said["write"] == f"{said['read']} To put a file of its own there, delete the link first."


def test_survivors_are_not_kept_quiet() -> None:
    wording = hints.word_fault(ErrorCode.timeout, {"seconds": 1, "survivors": 2}, "run")
    assert "2 of its processes could not be killed" in wording.message
    assert "Nothing it started is left" not in wording.message


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
_NAMES = [
    *sorted(FIELDS), "ids", "names", "free", "size", "kills", "bytes", "near", "ports", "live", "wait", "link", "target", "missing",
    "part", "parts_left", "mode", "owner", "owned", "running", "text",
    "asked", "script", "port", "own", "exit_code", "white_space", "line",
]
_fields = st.fixed_dictionaries(dict.fromkeys(_NAMES, _values))


@pytest.mark.exhaustive
@given(fields=_fields)
@settings(max_examples=40, deadline=None)
def test_values_of_any_type_are_worded(fields: dict[str, object]) -> None:
    """A guest that is not ours any more may send anything as a value; each example goes through all codes."""
    for code in sorted(hints._FAULTS):
        for operation in ("run", "read"):
            wording = hints.word_fault(code, fields, operation)
            assert isinstance(wording.message, str), code
            assert wording.hint, code


@pytest.mark.exhaustive
@given(fields=_fields)
@settings(max_examples=40, deadline=None)
def test_notices_of_any_values(fields: dict[str, object]) -> None:
    for code in sorted(NOTICES):
        notice = hints.word_notice(code, fields)
        assert notice is not None, code
        assert notice.message, code


GIB = 1 << 30
OOM = {"kills": 1, "limit": 2 * GIB, "certain": True}


@pytest.mark.parametrize(
    ("code", "fields", "said"),
    [
        ("out_of_memory", {**OOM, "pid": 12, "program": "python3", "rss_bytes": GIB}, "; python3 (pid 12) had 1.0 GiB of it."),
        ("out_of_memory", {**OOM, "pid": None, "program": "", "rss_bytes": GIB}, "; the largest process had 1.0 GiB of it."),
        ("out_of_memory", {**OOM, "program": "a\nb\x1b[1m", "pid": 3}, "; it was a?b?[1m (pid 3)."),
        ("out_of_memory", OOM, "the kernel killed 1 process of this command."),
        ("out_of_memory", {**OOM, "kills": 2, "certain": False}, "killed 2 processes in this sandbox, while this command ran."),
        ("too_many_processes", {"hits": 2, "limit": 64, "exit_code": 0}, "was hit 2 times while this command ran."),
        ("disk_nearly_full", {"path": "/tmp", "free": 0, "size": 48 << 20}, "/tmp is full: nothing of its 48.0 MiB is left."),
        ("write_lost", {"names": ["/a"], "count": 1}, "ran full a moment after /a was written: some of its content is lost."),
        ("write_lost", {"names": ["/a", "/b"], "count": 2}, "after these files were written: /a, /b. Some of their content is"),
        ("write_lost", {"names": ["/a", "/b"], "count": 5}, "written: /a, /b and 3 more. Some of their content is lost."),
        ("left_running", {"count": 1, "id": "c3"}, "The command left 1 process running, under the id c3."),
        ("command_ended", {"id": "c1", "signal": "SIGKILL", "reason": "cpu"}, "by SIGKILL (its processor time was used up)."),
        ("command_ended", {"id": "c1", "exit_code": 3, "reason": None}, "The command c1 ended with exit code 3."),
        ("command_ended", {"id": "c1", "name": "c1 (make)", "exit_code": 3}, "The command c1 (make) ended with exit code 3."),
        ("lifetime_ending", {"seconds": 181.2, "limit": 7200}, "This sandbox ends in 3 minutes."),
        ("idle_ending", {"seconds": 45, "limit": 3600}, "This sandbox ends in 45 seconds unless something is done in it: "),
    ],
)
def test_what_notices_say(code: str, fields: dict[str, object], said: str) -> None:
    notice = hints.word_notice(code, fields)
    assert notice is not None
    assert said in notice.message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 seconds"), (2.54, "2.5 seconds"), (89, "89 seconds"), (90, "2 minutes"), (3600, "60 minutes"), (9000, "2.5 hours"),
     (-4, "0 seconds"), ("x", "0 seconds")],
)  # fmt: skip
def test_times(seconds: object, text: str) -> None:
    assert duration(seconds) == text


def test_a_notice_that_is_not_known_is_none() -> None:
    assert hints.word_notice("tea_is_ready", {}) is None


def test_long_values_are_cut() -> None:
    wording = hints.word_fault(ErrorCode.path_not_found, {"path": "x" * 100_000}, "read")
    assert len(wording.message) < 600


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3_250_000, "3.1 MiB"), (5 << 30, "5.0 GiB"), ("x", "0 bytes")],
)
def test_sizes(count: object, text: str) -> None:
    assert size(count) == text


def test_every_code_of_the_fallback_table_is_worded() -> None:
    from sandbox.guest.protocol import faults

    assert set(faults._CODES.values()) <= set(ErrorCode.__members__)
    assert faults.fault_of(OSError(28, "full"), "a").code == "no_space"
    assert faults.fault_of(OSError(9999, "?"), "a").fields == {"path": "a", "errno": "unknown"}


@pytest.mark.parametrize(
    ("program", "at_once", "in_time"),
    [
        ("less", "text='q'", "| cat"),
        ("vim", "kill(id='c1')", "edit or write"),
        ("python3.11", "It reads lines", "python3 -c CODE"),
        ("install.sh", "Answer with send", "so that it asks nothing"),
    ],
)
def test_what_helps_with_a_program_that_waits_for_input(program: str, at_once: str, in_time: str) -> None:
    """s36, s58: a pager, an editor and an interpreter were answered with "as with -y"."""
    fields = {"id": "c1", "seconds": 2, "wait": {"kind": "stdin", "pid": 5, "program": program, "detail": "the terminal"}}
    notice = hints.word_notice("still_running", fields)
    assert notice is not None
    assert at_once in notice.hint
    assert in_time in hints.word_fault(ErrorCode.timeout, fields, "run").hint
