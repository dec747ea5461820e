"""Odd values and wrong types in every public call end in an envelope or in a documented exception (trials, D20 and D21).

Documented are: an envelope; SandboxError; TypeError or ValueError whose sentence names the argument; of ``sh``
also CalledProcessError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from sandbox import DockerEnvironment, Limits, LocalEnvironment, Network, Service, SideService
from sandbox.envelope import Failure, Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.services.side_service import Ready
from sandbox.operations import OPERATIONS
from sandbox.testing import FakeEnvironment

HUGE = 10**5000  # more digits than Python turns into text
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, HUGE, -HUGE, 0.0, -0.5, math.nan, math.inf, -math.inf, 1e300, 1 + 2j,
    "", "x", "\0", "a\0b", "\ud800", "\U0001f600", "../..", "/etc/passwd", "a" * 300, "a" * 5000,
    "a/" * 3000, "\x1b[31m", "\n",
    b"", b"x", b"\xff\xfe", bytearray(b"x"), memoryview(b"x"), [], [None], ["x", 1], [HUGE], (), {}, {"a": HUGE}, {1: 2},
    {"\ud800": "\ud800"}, set(), object(), object, print, Ellipsis, Path("x"), Path("a" * 300), Limits(), Network.none(),
    range(3), iter(()), Exception("x"),
]  # fmt: skip
odd = st.one_of(st.sampled_from(ODD), st.text(max_size=5), st.binary(max_size=3), st.integers(), st.floats())
# What each method takes: its positional arguments, and its options.
METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "read": (("path",), ("start_line", "end_line", "offset", "max_bytes", "numbered")),
    "write": (("path", "content"), ("request_id",)),
    "edit": (("path", "old_text", "new_text"), ("replace_all", "request_id")),
    "list": (("path",), ("depth", "hidden", "max_entries")),
    "search": (("pattern",), ("path", "glob", "literal", "ignore_case", "context_lines", "max_matches")),
    "make_dir": (("path",), ("request_id",)),
    "move": (("source", "target"), ("overwrite", "request_id")),
    "delete": (("path",), ("recursive", "request_id")),
    "run": (("command",), (
        "argv", "cwd", "env", "secrets", "stdin", "timeout_seconds", "cpu_seconds", "background", "session", "keep_output_bytes",
        "wait_seconds", "pty", "rows", "cols", "request_id", "on_output", "cancel", "user", "needs_session",
    )),
    "logs": (("id",), ("offset", "max_bytes", "tail_lines", "follow", "wait_seconds", "cancel")),
    "kill": (("id",), ("signal", "user")),
    "wait_for": ((), ("port", "log", "file", "exit", "id", "host", "contains", "literal", "timeout_seconds", "cancel")),
    "wait_for_port": (("port",), ("timeout_seconds", "cancel", "id", "host")),
    "processes": ((), ("id",)),
    "end_session": (("session",), ("user",)),
    "open_session": (("session",), ("user",)),
    "session": (("name",), ("user",)),
    "sessions": ((), ("user",)),
    "stat": (("path",), ()),
    "sh": (("command",), ("check", "cwd", "stdin")),
    "follow": (("id",), ("offset", "cancel")),
    "send": (("id",), ("text", "keys", "eof", "wait_seconds", "user")),
    "resize": (("id", "rows", "cols"), ("user",)),
    "screen": (("id",), ()),
    "usage": ((), ("nothing",)),
    "browse": (("url",), ("offset", "max_chars", "raw", "timeout_seconds")),
    "upload": (("data_or_path", "path"), ("mode",)),
    "download": (("path",), ("to", "overwrite", "without")),
    "forward": (("port",), ("host_port",)),
    "changes": ((), ("since", "leftovers", "max_changes")),
    "mark": ((), ("name",)),
    "checkpoint": ((), ("name",)),
    "delete_checkpoint": (("id",), ()),
    "rollback": (("id",), ("kill",)),
    "save_checkpoint": (("id", "to"), ()),
    "load_checkpoint": (("path",), ("name",)),
    "export_patch": ((), ("since", "to", "leftovers")),
    "fork": ((), ("count", "checkpoint")),
    "secret": (("name", "value"), ("always",)),
    "service_logs": (("name",), ("offset", "max_bytes", "tail_lines")),
    "execute": (("operation", "args"), ()),
    "execute_action": (("action", "args"), ()),
    "allow": (("rule",), ()),
    "deny": (("rule",), ()),
}  # fmt: skip
# Values that make a call wait, or that are paths of this host which would be written to.
_WAITING = {"timeout_seconds": 0.05, "wait_seconds": 0.05}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any]]:
    """A method with odd arguments, and with some of its options."""
    name = draw(st.sampled_from(sorted(METHODS)))
    arguments, options = METHODS[name]
    given = draw(st.lists(st.sampled_from(options), max_size=2, unique=True)) if options else []
    return name, [draw(odd) for _ in arguments], {option: draw(odd) for option in given}


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (SandboxError, TypeError, ValueError, CalledProcessError) as error:
        return error


def _check(name: str, call: Callable[[], Any]) -> None:
    answer = _outcome(call)
    if isinstance(answer, Success | Failure):
        answer.to_text().encode()
    if isinstance(answer, Failure):
        assert answer.code in ErrorCode
        assert len(answer.error) < 12000, f"{name}: {answer.error}"
    if isinstance(answer, Exception):
        str(answer).encode()
    if isinstance(answer, TypeError | ValueError):
        assert type(answer) in (TypeError, ValueError), f"{name}: {answer!r}"
        assert "(" in str(answer), f"{name}: {answer!r}"  # says which call it is about


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Relative paths of the host are below a folder of the test's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("host"))
        yield


@pytest.fixture(scope="module")
def fake(here: None) -> Iterator[FakeEnvironment]:
    with FakeEnvironment({"x": "content"}) as env:
        yield env


@pytest.fixture(scope="module")
def local(here: None) -> Iterator[LocalEnvironment]:
    with LocalEnvironment(limits=Limits(timeout_seconds=1, max_timeout_seconds=60)) as env:
        env.write("x", "content").unwrap()
        yield env


def _call(env: Any, name: str, arguments: list[Any], options: dict[str, Any]) -> None:
    if name == "execute_action":
        action = type("Bound", (), {"name": "x", "operation": arguments[0], "metadata": {}})
        arguments = [action if isinstance(arguments[0], str) else arguments[0], arguments[1]]
    for option, least in _WAITING.items():
        if type(options.get(option)) in (int, float) and options[option] > least:
            options[option] = least
    if name in ("wait_for", "wait_for_port") and "timeout_seconds" not in options:
        options["timeout_seconds"] = 0.05
    if name == "run" and options.get("background"):
        options["background"] = 1.5
    _check(name, lambda: getattr(env, name)(*arguments, **options))


_SETTINGS = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)  # fmt: skip


@pytest.mark.exhaustive
@seed(1)
@settings(_SETTINGS, max_examples=1500)
@given(calls())
def test_a_fake_environment(fake: FakeEnvironment, call: tuple[str, list[Any], dict[str, Any]]) -> None:
    _call(fake, *call)


@seed(2)
@settings(_SETTINGS, max_examples=1200)
@given(calls())
def test_a_local_environment(local: LocalEnvironment, call: tuple[str, list[Any], dict[str, Any]]) -> None:
    _call(local, *call)


# What each operation needs beside the argument that is tried.
NEEDED: dict[str, dict[str, Any]] = {
    "read": {"path": "x"}, "list_details": {"path": "x"}, "search": {"pattern": "x"}, "run": {"command": "true", "pty": True},
    "logs": {"id": "c1", "follow": True}, "send": {"id": "c1"}, "resize": {"id": "c1", "rows": 1, "cols": 1}, "browse": {"url": "http://127.0.0.1:1/"},
    "browse_interact": {"steps": {"action": "back"}},
}  # fmt: skip
NOT_SENT = "The arguments of read are invalid: a number in them has more digits than can be sent."
WANTED = {"timeout_seconds": {"file": "x"}, "offset": {"id": "c1", "log": "x"}}  # by wait_for


def _numbers() -> Iterator[tuple[str, str]]:
    for name, kind in OPERATIONS.items():
        for option, schema in kind.model_json_schema().get("properties", {}).items():
            types = {each.get("type") for each in (schema, *schema.get("anyOf", ()))}
            if types & {"integer", "number"} and name not in ("upload", "download"):
                yield name, option


@pytest.mark.parametrize("huge", [HUGE, -HUGE, 10**400], ids=["huge", "-huge", "beyond-floats"])
@pytest.mark.parametrize(("name", "option"), list(_numbers()))
def test_a_huge_number_is_a_failure_in_every_operation(fake: FakeEnvironment, name: str, option: str, huge: int) -> None:
    """Python makes no text of ints with more than 4,300 digits, and no float of those with more than 308."""
    needed = WANTED.get(option, {}) if name == "wait_for" else NEEDED.get(name, {})
    answer = getattr(fake, name)(**{**needed, option: huge})
    assert fake.execute(name, {**needed, option: huge}).to_dict().get("error") == answer.to_dict().get("error")
    if isinstance(answer, Failure) and answer.code is ErrorCode.invalid_arguments:
        assert option in answer.error or answer.error == NOT_SENT  # what only the guest would refuse is not sent
        assert "The arguments of  " not in answer.error
        assert len(answer.error) < 500


def test_a_number_that_cannot_be_sent_is_worded_with_its_operation(local: LocalEnvironment) -> None:
    answer = local.read("x", start_line=HUGE)
    assert isinstance(answer, Failure)
    assert answer.error == NOT_SENT


def test_a_local_environment_lives_on(local: LocalEnvironment) -> None:
    assert local.run("echo alive", timeout_seconds=60).unwrap().stdout == "alive\n"
    answer = local.changes("unknown")
    assert answer.to_dict()["code"] == "checkpoint_not_found"
    assert local.read("x").ok or local.write("x", "y").ok


CONSTRUCTORS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "DockerEnvironment": (DockerEnvironment, (
        "image", "workspace", "limits", "network", "env", "ca_bundle", "approver", "report", "profile", "runtime", "track_changes",
        "keep", "keep_seconds", "name", "services", "cache", "read_roots", "pull",
    )),
    "LocalEnvironment": (LocalEnvironment, (
        "workspace", "limits", "env", "approver", "track_changes", "network", "services", "cache", "read_roots",
    )),
    "Limits": (Limits, tuple(Limits.__dataclass_fields__)),
    "Service": (partial(Service, name="api", upstream="https://api.example.com"), (
        "name", "upstream", "headers", "methods", "paths", "ca_bundle", "plain_headers",
    )),
    "Ready": (Ready, ("log", "command", "http", "timeout_seconds")),
    "SideService": (partial(SideService, image="x", port=80), (
        "image", "command", "port", "ports", "ready", "env", "user", "limits",
    )),
    "Network.open": (Network.open, ("ask", "names", "ask_seconds")),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_every_option_of_a_constructor_with_every_odd_value(name: str, here: None) -> None:
    make, options = CONSTRUCTORS[name]
    for option in options:
        for value in ODD:
            _check(name, partial(make, **{option: value}))


def test_rules_of_a_network() -> None:
    for value in ODD:
        _check("Network.allow", partial(Network.allow, value))


@pytest.mark.parametrize("name", [b"x", 5, ["x"]])
def test_a_name_of_a_wrong_type_is_not_kept(local: LocalEnvironment, name: Any) -> None:
    """``mark(b"x")`` was kept before it failed, and from then on every unknown id was a TypeError."""
    with pytest.raises(TypeError, match=r"mark\(\): name must be a str or None, not"):
        local.mark(name)
    answer = local.rollback("unknown")
    assert isinstance(answer, Failure)
    assert answer.code is ErrorCode.checkpoint_not_found


def test_a_number_that_has_no_text_is_named_by_its_size(local: LocalEnvironment) -> None:
    with pytest.raises(SandboxError, match="16610 bits") as raised:
        Limits(memory_bytes=HUGE)
    assert raised.value.code is ErrorCode.invalid_limits
    assert "16610 bits" in local.execute("read", {"path": "x", "max_bytes": -HUGE}).to_dict()["error"]
    assert "more digits than can be sent" in local.execute("read", {"path": "x", "offset": HUGE}).to_dict()["error"]
