"""Mistakes of a calling program are raised as Python raises them (finding UX 7); what a model asks for gets an envelope."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import subprocess
import threading
from collections import ChainMap, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.core.environment_wrapper import WrappedEnvironment
from agent.layers.own_sessions import OwnSessions
from agent.layers.read_only import ReadOnlyEnvironment
from agent.tools import SandboxAction
from sandbox import AsyncEnvironment, CommandError, DockerEnvironment, ErrorCode, LocalEnvironment, SandboxError
from sandbox.environment.base import Environment
from sandbox.environment.methods import OperationMethods, RunOptions
from sandbox.operations import HostArguments, Read, Run
from sandbox.testing import FakeEnvironment
from tests.contract.checks import closed


@pytest.fixture(scope="module")
def local() -> Iterator[LocalEnvironment]:
    with LocalEnvironment() as env:
        yield env


@pytest.fixture
def fake() -> Iterator[Any]:
    with FakeEnvironment({"a": "1\n2\n"}) as env:
        yield env


def _any(env: Any) -> Any:
    """``env`` for calls that a type checker would refuse."""
    return env


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda env: env.read("a", start=1), "read() has no option 'start'. Did you mean 'start_line'?"),
        (lambda env: env.search("x", zzz=1), "search() has no option 'zzz'. It takes pattern, path, glob,"),
        (lambda env: env.wait_for(prot=80), "wait_for() has no option 'prot'. Did you mean 'port'?"),
        (lambda env: env.read(5), "read(): path must be a valid string, not int."),
        (lambda env: env.read(["a.txt"]), "read(): path must be a valid string, not list."),
        (lambda env: env.read("a", start_line="first"), "read(): start_line must be a valid integer, not str."),
        (lambda env: env.read("a", start_line=1.5), "read(): start_line must be a valid integer, not float."),
        (lambda env: env.write("a", None), "write(): content must be a valid string, not NoneType."),
        (lambda env: env.run("true", env={"A": 1}), "run(): env['A'] must be a valid string, not int."),
        (lambda env: env.run(["ls", 5]), "run(): argv[1] must be a valid string, not int."),
        (lambda env: env.run(5), "run(): argv must be a valid tuple, not int."),
        (lambda env: env.run("true", timeout_seconds="soon"), "run(): timeout_seconds must be a valid number, not str."),
        (lambda env: env.run(["ls"], argv=["ls"]), "run() takes one of command and argv, not both."),
        (lambda env: env.run("true", cancel=threading.Event()), "run(): cancel must be a CancelToken or None, not Event."),
        (lambda env: env.run("true", on_output="print"), "run(): on_output must be a function or None, not str."),
        (lambda env: env.logs("c1", cancel=True), "logs(): cancel must be a CancelToken or None, not bool."),
        (lambda env: env.wait_for_port("80"), "wait_for_port(): port must be an int, not str."),
        (lambda env: env.forward("80"), "forward(): port must be an int, not str."),
        (lambda env: env.forward(80, True), "forward(): host_port must be an int, not bool."),
        (lambda env: env.upload(b"", 5), "upload(): path must be a str, not int."),
        (lambda env: env.download(5), "download(): path must be a str, not int."),
        (lambda env: env.run("true", timeout_seconds="5"), "run(): timeout_seconds must be a valid number, not str."),
        (lambda env: env.run("true", timeout_seconds=True), "run(): timeout_seconds must be a valid number, not bool."),
        (lambda env: env.run("true", background="yes"), "run(): background must be a valid boolean, not str."),
        (lambda env: env.run("true", background=1), "run(): background must be a valid boolean, not int."),
        (lambda env: env.run("true", rows="3"), "run(): rows must be a valid integer, not str."),
        (lambda env: env.run([b"ls"]), "run(): argv[0] must be a valid string, not bytes."),
        (lambda env: env.run("true", env={"A": b"x"}), "run(): env['A'] must be a valid string, not bytes."),
        (lambda env: env.run("true", cwd=Path("/tmp")), "run(): cwd must be a valid string, not"),
        (lambda env: env.write("a", b"x"), "write(): content must be a valid string, not bytes."),
        (lambda env: env.read(b"x"), "read(): path must be a valid string, not bytes."),
        (lambda env: env.read("a", start_line="3"), "read(): start_line must be a valid integer, not str."),
        (lambda env: env.read("a", start_line=True), "read(): start_line must be a valid integer, not bool."),
        (lambda env: env.read("a", start_line=0, numbered="yes"), "read(): numbered must be a valid boolean, not str."),
        (lambda env: env.kill("c1", 2), "kill(): signal must be 'SIGINT'"),
        (lambda env: env.perform("read", {}), "perform(): request must be a Request such as Run(command='ls'), not str"),
        (lambda env: _any(WrappedEnvironment(env)).perform({"path": "a"}), "perform(): request must be a Request"),
        (lambda env: _any(ReadOnlyEnvironment(env)).perform("read"), "perform(): request must be a Request"),
        (lambda env: _any(OwnSessions(env, "a", "b")).perform("read"), "perform(): request must be a Request"),
        (
            lambda env: env.browse_interact([{"action": "click", "ref": "e1"}]),
            "browse_interact(): steps[0] has no field 'ref': it has action, target, value.",
        ),
        (
            lambda env: env.browse_interact([{"action": "back"}, {"target": "e1"}]),
            "browse_interact(): steps[1] needs action (What to do).",
        ),
        (
            lambda env: env.browse_interact({"action": ["tap"]}),
            "browse_interact(): steps[0].action must be one of 'goto', 'back', 'click',",
        ),
        (lambda env: env.perform(Read.model_validate({"path": "a"}), {}), "perform(): watch must be a Watch or None, not dict."),
    ],
)
def test_a_wrong_type_or_an_unknown_option_is_a_type_error(
    fake: FakeEnvironment, call: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call(fake)
    assert str(caught.value).startswith(words)


def test_a_value_out_of_range_is_still_answered_with_an_envelope(fake: FakeEnvironment) -> None:
    for answer in (fake.read("a", start_line=0), fake.run("true", timeout_seconds=-1), fake.kill("c1", "SIGFOO"), fake.run()):
        assert not answer.ok
        assert answer.code is ErrorCode.invalid_arguments


def test_harmless_types_are_taken(local: LocalEnvironment) -> None:
    """What is strict for mistakes takes other collections, mappings, ints for floats and every kind of bytes as input."""
    words = deque(["printenv", "A"])
    assert local.run(words, env=ChainMap({"A": "b"}), timeout_seconds=5, wait_seconds=None).unwrap().stdout == "b\n"
    given: tuple[Any, ...] = ("\xff", b"\xff", bytearray(b"\xff"), memoryview(b"\xff"), iter([b"\xff"]))
    for stdin in given:
        shown = local.run(["od", "-An", "-tx1"], stdin=stdin).unwrap().stdout.split()
        assert shown == (["c3", "bf"] if isinstance(stdin, str) else ["ff"])
    assert local.execute("run", {"command": "true", "timeout_seconds": "5", "background": 0}).ok  # of a model


def test_only_the_hosts_program_gives_a_user(fake: FakeEnvironment) -> None:
    """``execute`` takes the arguments of a model, so it refuses those that are host-only; methods pass them."""
    for env in (fake, WrappedEnvironment(fake), OwnSessions(fake, "mine", "other")):
        for name, value in {"user": "root", "needs_session": True}.items():
            answer = env.execute("run", {"command": "id", name: value}).to_dict()
            assert answer["code"] == "invalid_arguments"
            assert answer["error"] == f"Only the host's program may give run the argument {name!r}."
        for operation, needed in {"kill": {"id": "c1"}, "sessions": {}, "send": {"id": "c1"}}.items():
            assert env.execute(operation, {**needed, "user": 0}).to_dict()["code"] == "invalid_arguments"
        assert env.run("id", user="root").to_dict()["code"] == "user_not_allowed"
        assert env.execute("run", HostArguments(command="id", user="root")).to_dict()["code"] == "user_not_allowed"
        assert env.perform(Run.model_validate({"command": "id", "user": "root"})).to_dict()["code"] == "user_not_allowed"
        assert env.execute("run", {"command": "id", "user": None}).to_dict()["code"] == "operation_not_supported"
    assert [getattr(request, "user", "") for request in fake.requests] == ["root", "root", "root", None] * 3


def test_a_method_calls_execute_where_a_subclass_has_its_own(fake: FakeEnvironment) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    class Numbering(FakeEnvironment):
        def execute(self, operation: str, args: Any, *, watch: Any = None) -> Any:
            asked.append((operation, dict(args)))
            return super().execute(operation, {**args, "numbered": True}, watch=watch)

    with Numbering({"a": "1\n2\n"}) as env:
        assert [env.read("a").unwrap().content, fake.read("a").unwrap().content] == ["     1\t1\n     2\t2\n", "1\n2\n"]
        assert asked == [("read", {"path": "a", "numbered": False})]


def test_a_method_calls_what_was_put_in_the_place_of_execute_and_validated(
    fake: FakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Validating(FakeEnvironment):
        def validated(self, operation: str, args: Any) -> Any:
            asked.append(operation)
            return super().validated(operation, args)

    with Validating({"a": "1\n"}) as env:
        assert env.read("a").ok
        monkeypatch.setattr(env, "execute", lambda operation, args, watch=None: asked.append(f"{operation} of one"))
        env.read("a")
    monkeypatch.setattr(Environment, "execute", lambda self, operation, args, watch=None: asked.append(f"{operation} of all"))
    fake.stat("a")
    assert asked == ["read", "read of one", "stat of all"]


def test_what_a_model_asks_for_is_answered_with_envelopes(fake: FakeEnvironment) -> None:
    assert fake.execute("read", {"path": 5}).to_dict()["code"] == "invalid_arguments"
    assert fake.execute("read", {"path": "a", "start": 1}).to_dict()["code"] == "invalid_arguments"
    assert fake.execute_action(SandboxAction("read"), {"path": 5})["code"] == "invalid_arguments"
    assert WrappedEnvironment(fake).execute("read", {"path": 5}).to_dict()["code"] == "invalid_arguments"


@pytest.mark.parametrize(
    ("operation", "args", "words"),
    [
        (
            "browse_interact",
            {"steps": [{"action": "click", "ref": "e1"}]},
            "steps[0] has no field 'ref': it has action, target, value.",
        ),
        (
            "browse_interact",
            {"steps": [{"action": "click", "targt": "e1"}]},
            "steps[0] has no field 'targt': it has action, target, value; did you mean target?.",
        ),
        (
            "browse_interact",
            {"steps": {"type": "click"}},
            "steps[0] needs action (What to do); steps[0] has no field 'type': it has action, target, value.",
        ),
        (
            "browse_interact",
            {"steps": {"action": "tap"}},
            (
                "steps[0].action must be one of 'goto', 'back', 'click', 'fill', 'type', 'select', 'press', 'scroll', 'hover', "
                "'wait', 'evaluate', 'upload', 'download', 'tab', 'close_tab', 'dialog', not 'tap'."
            ),
        ),
        ("browse_interact", {"steps": ["click"]}, "steps[0] must be an object, not 'click' (One step in a page)."),
        ("run", {"argv": ["ls", 5]}, "argv[1] must be a text, not 5."),
        ("run", {"command": "ls", "env": {"A b": 5}}, "env['A b'] must be a text, not 5."),
    ],
)
def test_a_mistake_within_an_argument_is_told_by_its_path(
    fake: FakeEnvironment, operation: str, args: dict[str, Any], words: str
) -> None:
    answer = fake.execute(operation, args).to_dict()
    assert (answer["code"], answer["error"]) == ("invalid_arguments", words)


def test_a_forgotten_start_and_a_call_after_the_end_are_raised() -> None:
    env = LocalEnvironment()
    calls: list[Callable[[], object]] = [
        lambda: env.run("ls"), lambda: env.read("a"), lambda: env.upload(b"", "a"), lambda: env.download("a"),
        env.changes, env.checkpoint, lambda: env.rollback("a"), env.export_patch, lambda: env.forward(80),
        lambda: WrappedEnvironment(env).usage(),
    ]  # fmt: skip
    for call in calls:
        closed(call, "not started", "start()")
    assert env.execute("read", {"path": "a"}).to_dict()["code"] == "sandbox_closed"
    assert env.execute_action(SandboxAction("read"), {"path": "a"})["code"] == "sandbox_closed"
    with pytest.raises(SandboxError):
        env.perform(Read.model_validate({"path": "a"}))
    env.close()
    for call in calls:
        closed(call, "closed", "Make a new environment")


def test_a_list_is_a_program_with_its_arguments(local: LocalEnvironment) -> None:
    assert local.run(["printf", "%s", "a b; c"]).unwrap().stdout == "a b; c"
    assert local.run(("printf", "x")).unwrap().stdout == "x"

    async def asynchronous() -> str:
        return (await AsyncEnvironment(local).run(["printf", "%s", "$HOME"])).unwrap().stdout

    assert asyncio.run(asynchronous()) == "$HOME"


def test_sh_returns_the_result_and_raises_on_request(local: LocalEnvironment) -> None:
    assert local.sh("echo hi").stdout == "hi\n"
    assert local.sh(["echo", "hi"], check=True).exit_code == 0
    assert local.sh("exit 3").exit_code == 3
    with pytest.raises(CommandError, match=r"'echo out; echo err >&2; exit 3' returned non-zero exit status 3[^$]*out") as caught:
        local.sh("echo out; echo err >&2; exit 3", check=True)
    assert isinstance(caught.value, subprocess.CalledProcessError)
    assert (caught.value.returncode, caught.value.stdout, caught.value.stderr) == (3, "out\n", "err\n")
    assert caught.value.result.exit_code == 3
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(CommandError, match="SIGKILL") as killed:
        local.sh(["sh", "-c", "kill -9 $$"], check=True)
    assert killed.value.returncode == -9
    with pytest.raises(SandboxError) as late:
        local.sh("sleep 60", timeout_seconds=0.1)
    assert late.value.code is ErrorCode.timeout
    background = local.sh("sleep 60", background=True, check=True)
    assert background.running
    local.kill(background.id).unwrap()


def test_sh_in_coroutines(local: LocalEnvironment) -> None:
    async def asynchronous() -> None:
        env = AsyncEnvironment(local)
        assert (await env.sh("echo hi")).stdout == "hi\n"
        with pytest.raises(CommandError):
            await env.sh("exit 1", check=True)
        with pytest.raises(TypeError, match="Did you mean"):
            await env.read("a", start=1)  # type: ignore[call-arg]

    asyncio.run(asynchronous())


def test_async_with_names_the_environment_for_coroutines() -> None:
    async def wrong() -> None:
        async with LocalEnvironment():  # type: ignore[attr-defined]
            pass

    with pytest.raises(TypeError, match=r"async with AsyncEnvironment\(LocalEnvironment\(\.\.\.\)\) as env"):
        asyncio.run(wrong())


def test_environments_say_what_and_how_they_are_when_they_are_printed(tmp_path: Path) -> None:
    """Finding UX 8."""
    assert repr(DockerEnvironment(image="gamebox/base")) == "<DockerEnvironment gamebox/base not started>"
    env = LocalEnvironment(tmp_path)
    assert repr(env) == f"<LocalEnvironment {tmp_path} not started>"
    with env:
        assert repr(env) == f"<LocalEnvironment {tmp_path} running>"
        assert repr(WrappedEnvironment(env)) == f"<WrappedEnvironment around {env!r}>"
        assert repr(AsyncEnvironment(env)) == f"<AsyncEnvironment of {env!r}>"
    assert repr(env) == f"<LocalEnvironment {tmp_path} closed>"
    fake = FakeEnvironment()
    assert repr(fake) == "<FakeEnvironment not started>"
    with fake:
        assert repr(fake) == "<FakeEnvironment running>"
        assert repr(fake.session("build")) == "<Session 'build'>"
        assert repr(AsyncEnvironment(fake).session("build", user=0)) == "<AsyncSession 'build' of 0>"
    assert repr(fake) == "<FakeEnvironment closed>"
    assert repr(FakeEnvironment().start()) == "<FakeEnvironment running>"


def test_a_forwarded_port_is_closed_by_its_block(local: LocalEnvironment) -> None:
    with local.forward(8000).unwrap() as forward:
        assert not forward.closed
    assert forward.closed


def test_sh_takes_every_option_that_run_takes() -> None:
    options = inspect.signature(OperationMethods.run).parameters
    assert {name: each.annotation for name, each in options.items() if name not in ("self", "command")} == (
        {name: each.__forward_arg__ for name, each in RunOptions.__annotations__.items()}
    )
