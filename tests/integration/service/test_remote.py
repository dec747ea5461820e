"""RemoteEnvironment over a real service: its life, what crosses a restart of the service, and how it is left."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import AsyncRemoteEnvironment, CancelToken, Limits, Network, RemoteEnvironment
from sandbox.client.http.codes import ProblemCode
from sandbox.client.listing import list_sandboxes
from sandbox.envelope import Failure
from sandbox.errors import ErrorCode, SandboxError
from tests.contract.checks import done, refused
from tests.integration.observing import eventually
from tests.integration.own_engine import IMAGE
from tests.servers.gamebox_service import ServiceProcess

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]
SMALL = Limits(memory_bytes=64 << 20)
Make = Callable[..., RemoteEnvironment]


def made_by(service: ServiceProcess) -> Iterator[Make]:
    """What makes environments of the service, and deletes their sandboxes in the end."""
    made: list[RemoteEnvironment] = []

    def make(**options: Any) -> RemoteEnvironment:
        made.append(RemoteEnvironment(**{"image": IMAGE, "limits": SMALL, "url": service.url, "api_key": service.key, **options}))
        return made[-1]

    yield make
    for env in made:
        env.remove()


@pytest.fixture
def make(service: ServiceProcess) -> Iterator[Make]:
    yield from made_by(service)


@pytest.fixture
def mortal(place: Path, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that may be killed."""
    service = ServiceProcess(tmp_path / "data").start()
    yield service
    service.stop()


@pytest.fixture
def env_of_mortal(mortal: ServiceProcess) -> Iterator[RemoteEnvironment]:
    makers = made_by(mortal)
    env = next(makers)().start()
    yield env
    if mortal.process is None:
        mortal.start()
    next(makers, None)


def ids(service: ServiceProcess) -> list[str]:
    """The sandboxes that the service has."""
    from sandbox.client.http.service import Service

    asked = Service(service.url, service.key)
    try:
        return [each.id for each in list_sandboxes(asked) if not each.is_over]
    finally:
        asked.close()


def test_leaving_the_block_deletes_the_sandbox(service: ServiceProcess, make: Make) -> None:
    with make() as env:
        assert env.id in ids(service)
        assert repr(env) == f"<RemoteEnvironment {IMAGE} at {service.url} {env.id}>"
        ident = env.id
    assert ident not in ids(service)
    with pytest.raises(SandboxError) as caught:
        env.run("true")
    assert caught.value.code is ErrorCode.sandbox_closed


@pytest.mark.parametrize("keep", [False, True])
def test_threads_at_work_hear_that_another_one_has_closed_it(service: ServiceProcess, make: Make, keep: bool) -> None:
    env = make(keep=keep).start()
    done(env.upload(bytes(4 << 20), "big"))
    began, ends = queue.SimpleQueue[int](), queue.SimpleQueue[tuple[str, str]]()

    def slow() -> Iterator[bytes]:
        for _ in range(600):
            yield b"x"
            time.sleep(0.1)

    def terminal() -> Failure[Any]:
        with env.terminal(["sleep", "60"]) as opened:
            opened.run(print)
        return Failure(ErrorCode.command_ended, "The terminal ended.")

    works: dict[str, Callable[[], Any]] = {
        "run": lambda: env.run("sleep 60", session=None),
        "stdin": lambda: env.run("sleep 60", session=None, stdin=slow()),
        "output": lambda: env.run("sleep 60", session=None, on_output=print),
        "wait": lambda: env.wait_for(port=8000, timeout_seconds=60),
        "upload": lambda: env.upload(bytes(4 << 20), "to"),
        "download": lambda: env.download("big"),
        "terminal": terminal,
    }

    def work(name: str) -> None:
        began.put(1)
        code = ""
        while not code:  # transfers are over soon
            try:
                answer = works[name]()
                code = "" if answer.ok else answer.code.value
            except SandboxError as error:
                code = error.code.value
            except Exception as error:  # noqa: BLE001  # what the test is about
                code = repr(error)
        ends.put((name, code))

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in works]
    for each in threads:
        each.start()
    assert len([began.get(timeout=30) for _ in threads]) == len(threads)
    assert eventually(lambda: len([each for each in done(env.processes()).commands if each.running]) == 4)
    env.close()
    for name, code in [ends.get(timeout=20) for _ in threads]:
        assert code in ("sandbox_unavailable", "sandbox_closed"), name


def test_a_kept_one_stays_and_is_attached_to_by_its_id(service: ServiceProcess, make: Make) -> None:
    options: dict[str, Any] = {"url": service.url, "api_key": service.key}
    with make(keep=True) as env:
        done(env.write("a", "kept"))
        ident = env.id
    with RemoteEnvironment.attach(ident, **options) as again:
        assert done(again.read("a")).content == "kept"
        assert again.limits.memory_bytes == SMALL.memory_bytes
    assert ident in ids(service)
    RemoteEnvironment.attach(ident, **options).remove()
    assert ident not in ids(service)
    for unknown in (ident, "../keys", ""):
        with pytest.raises(SandboxError) as caught:
            RemoteEnvironment.attach(unknown, **options)
        assert caught.value.code is ErrorCode.sandbox_not_found


def test_with_asyncio(service: ServiceProcess) -> None:
    options: dict[str, Any] = {"url": service.url, "api_key": service.key}

    async def use() -> str:
        async with AsyncRemoteEnvironment(IMAGE, limits=SMALL, keep=True, **options) as env:
            assert (await env.run("echo a")).unwrap().output == "a\n"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(env.run("sleep 600"), 0.5)
            assert not any(each.running for each in done(await env.processes()).commands)
            assert [chunk.text async for chunk in env.stream("echo b")] == ["b\n"]
            await env.update(metadata={"a": "b"})
        again = await AsyncRemoteEnvironment.attach(env.id, **options)
        assert (await again.run("echo c")).unwrap().output == "c\n"
        await again.remove()
        return env.id

    assert asyncio.run(use()) not in ids(service)


def test_no_thread_waits_for_an_answer(service: ServiceProcess) -> None:
    options: dict[str, Any] = {"url": service.url, "api_key": service.key}

    async def use() -> None:
        async with AsyncRemoteEnvironment(IMAGE, limits=SMALL, **options) as env:
            before = threading.active_count()
            runs = [asyncio.create_task(env.run(f"sleep 1; echo {n}", session=None)) for n in range(20)]
            await asyncio.sleep(0.7)
            assert threading.active_count() <= before
            assert [done(each).output for each in await asyncio.gather(*runs)] == [f"{n}\n" for n in range(20)]
            assert done(await env.run("wc -c", stdin=b"x" * (2 << 20))).output == f"{2 << 20}\n"
            done(await env.write("a", "b"))
            assert done(await env.read("a")).content == "b"
            token = CancelToken()
            stopped = await env.run("echo up; sleep 600", on_output=lambda *_: token.cancel(), cancel=token)
            refused(stopped, "cancelled", effects="unknown")
            refused(await env.read("none"), "path_not_found")
            refused(await env.execute("run", {"command": 7}), "invalid_arguments")
            for own in ("an id / with ünusual characters", "plain"):
                first = done(await env.run("echo once", request_id=own))
                assert done(await env.run("echo once", request_id=own)) == first
            await env.secret("TOKEN", "s3cr3t-for-all")
            assert done(await env.run('echo "$TOKEN"')).output == "***TOKEN***\n"

    asyncio.run(use())


def test_what_it_starts_with(service: ServiceProcess, make: Make, tmp_path: Path) -> None:
    (tmp_path / "work/sub").mkdir(parents=True)
    (tmp_path / "work/sub/a").write_text("one\ntwo\n")
    with make(workspace=tmp_path / "work", env={"COLOUR": "red"}, metadata={"task": "7"}) as env:
        assert done(env.run("cat sub/a; echo $COLOUR")).output == "one\ntwo\nred\n"
        assert done(env.changes()).changes == ()
        done(env.edit("sub/a", "two", "three"))
        assert [(each.change, each.path) for each in done(env.changes()).changes] == [("modified", "sub/a")]
        patch = done(env.export_patch(to=tmp_path / "patch"))
        assert b"-two\n+three\n" in patch.patch
        assert (tmp_path / "patch").read_bytes() == patch.patch
        refused(env.export_patch(to=tmp_path / "patch"), "path_exists")
        assert list(env.describe()) == ["sandbox", "network", "limits", "left"]


def test_certificates_of_this_host(make: Make, tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text("-----BEGIN CERTIFICATE-----\nown\n")
    with make(ca_bundle=tmp_path / "own.pem", env={"CURL_CA_BUNDLE": "mine"}) as env:
        shown = done(env.run('head -n 2 "$SSL_CERT_FILE"; echo $CURL_CA_BUNDLE; cat $APT_CONFIG')).output
        assert shown.startswith("-----BEGIN CERTIFICATE-----\nown\nmine\nAcquire::https::CAInfo")


def test_a_start_that_fails_leaves_nothing(service: ServiceProcess, make: Make, tmp_path: Path) -> None:
    before = ids(service)
    with pytest.raises(SandboxError) as caught:
        make(image="somebody/else").start()
    assert caught.value.code is ProblemCode.forbidden_by_operator
    with pytest.raises(SandboxError, match="is not a folder"):
        make(workspace=tmp_path / "none")
    (tmp_path / "large").write_bytes(b"x" * 2_000_000)
    env = make(workspace=tmp_path, limits=Limits(memory_bytes=64 << 20, transfer_bytes=1_000_000), keep=True)
    for _ in range(2):
        with pytest.raises(SandboxError) as caught:
            env.start()
        assert caught.value.code is ErrorCode.file_too_large
    assert ids(service) == before


def test_the_service_keeps_no_secret(service: ServiceProcess, make: Make) -> None:
    value = "s3cr3t-and-nobody-else-s"
    with make() as env:
        env.secret("TOKEN", value)
        assert done(env.run('echo "$TOKEN"')).output == "***TOKEN***\n"
        assert "TOKEN" in env.describe()["secrets"]
        assert list(env.describe()) == ["sandbox", "network", "secrets", "limits", "left"]
        for file in service.folder.iterdir():
            assert value.encode() not in file.read_bytes()


def test_pause_network_and_time_to_live(make: Make) -> None:
    with make(network=Network.allow("example.com")) as env:
        env.pause()
        refused(env.run("true"), "sandbox_paused")
        env.resume()
        assert done(env.run("echo on")).output == "on\n"
        assert [rule.text for rule in env.allow("example.org").rules] == ["example.com", "example.org"]
        assert "example.org" in env.describe()["network"]
        env.update(time_to_live_seconds=1.0)
        assert eventually(lambda: not env.run("true").ok)
        assert refused(env.run("true"), "sandbox_unavailable", effects="unknown").reason in ("time_to_live", "lifetime_over")


def test_an_hour_that_nobody_asked_for_goes_on(service: ServiceProcess, make: Make) -> None:
    """An agent's run of two hours lost its sandbox in the middle."""
    from sandbox.client.http.service import Call

    asked = {"time_to_live_seconds": 600.0}
    for options, renewed in (({}, True), ({"keep": True}, True), (asked, False), ({**asked, "renew": True}, True)):
        env = make(**options).start()

        def ends() -> str:
            return str(env.service.json(Call("GET", f"/v1/sandboxes/{env.id}"))["ends_at"])  # noqa: B023

        first = ends()
        done(env.run("true"))
        assert ends() == first
        env.life.renew_at = 0.0  # half an hour later
        done(env.run("true"))
        assert (ends() > first) == renewed
        env.update(time_to_live_seconds=2 * env.life.seconds)
        for renew in (False, True):
            with RemoteEnvironment.attach(env.id, url=service.url, api_key=service.key, renew=renew) as other:
                first = ends()
                other.life.renew_at -= env.life.seconds
                done(other.run("true"))
                assert (ends() > first) == renew


def test_forks_go_their_own_way(service: ServiceProcess, make: Make) -> None:
    with make() as env:
        done(env.write("a", "shared"))
        env.secret("TOKEN", "the-same-everywhere")
        with done(env.fork(2)) as forks:
            for number, fork in enumerate(forks.environments):
                ran = done(fork.run(f"cat a; echo $TOKEN; echo {number} > a"))
                assert ran.output == "shared***TOKEN***\n"
            assert len(ids(service)) >= 3
        assert set(ids(service)).isdisjoint(fork.id for fork in forks.environments)
        assert done(env.read("a")).content == "shared"
        refused(env.fork(1, "nothing"), "checkpoint_not_found")
        assert env.fork(0).to_dict()["code"] == "invalid_arguments"


def test_one_that_somebody_else_deleted(service: ServiceProcess, make: Make) -> None:
    env = make().start()
    RemoteEnvironment.attach(env.id, url=service.url, api_key=service.key).remove()
    failure = refused(env.run("true"), "sandbox_unavailable", env.id, effects="unknown")
    assert failure.reason == "removed"
    assert not env.upload(b"x", "a").ok
    assert not env.changes().ok
    env.close()


def test_what_a_listener_raises_stops_the_command(make: Make) -> None:
    for error in (LookupError("enough"), SandboxError(ErrorCode.tool_error, "Enough.", "Stop here.")):

        def listen(stream: str, text: str, error: Exception = error) -> None:
            raise error

        with make() as env:
            if isinstance(error, SandboxError):
                refused(env.run("echo a; sleep 600", on_output=listen), "tool_error")
            else:
                with pytest.raises(LookupError, match="enough"):
                    env.run("echo a; sleep 600", on_output=listen)
            assert not any(each.running for each in done(env.processes()).commands)


def test_a_wrong_key(service: ServiceProcess) -> None:
    with pytest.raises(SandboxError) as caught:
        RemoteEnvironment(url=service.url, api_key="e2b_" + "0" * 40).start()
    assert caught.value.code is ProblemCode.unauthorized


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing_running(service: ServiceProcess, make: Make, number: signal.Signals) -> None:
    program = """
import os, sys
from sandbox import RemoteEnvironment
from sandbox.interrupts import interrupt_on_termination
env = RemoteEnvironment.attach(sys.argv[1])
with interrupt_on_termination():
    env.run("sleep 1717", on_output=None if sys.argv[2] == "quiet" else print)
"""
    with make() as env:
        for how in ("quiet", "loud"):
            environ = {**os.environ, "GAMEBOX_URL": service.url, "GAMEBOX_API_KEY": service.key}
            other = subprocess.Popen([sys.executable, "-c", program, env.id, how], env=environ, stderr=subprocess.PIPE, text=True)
            assert eventually(lambda: any(each.running for each in done(env.processes()).commands))
            other.send_signal(number)
            assert "KeyboardInterrupt" in other.communicate(timeout=60)[1]
            assert not any(each.running for each in done(env.processes()).commands)


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0])
def test_ctrl_c_during_the_start_leaves_no_sandbox(service: ServiceProcess, seconds: float) -> None:
    program = f"""
import os, signal, threading
from sandbox import Limits, RemoteEnvironment
env = RemoteEnvironment({IMAGE!r}, limits=Limits(memory_bytes=64 << 20))
env.service.is_alive()
threading.Timer({seconds}, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
with env:
    env.run("sleep 600")
"""
    before = set(ids(service))
    environ = {**os.environ, "GAMEBOX_URL": service.url, "GAMEBOX_API_KEY": service.key}
    ended = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert "KeyboardInterrupt" in ended.stderr
    assert set(ids(service)) <= before


def test_a_run_goes_on_while_the_service_is_dead(mortal: ServiceProcess, env_of_mortal: RemoteEnvironment) -> None:
    env, answers = env_of_mortal, list[Any]()
    running = threading.Thread(target=lambda: answers.append(env.run("echo x >> n; sleep 3; cat n")))
    running.start()
    assert eventually(lambda: env.read("n").ok)
    mortal.kill()
    mortal.start()
    running.join(60)
    assert done(answers[0]).output == "x\n"
    assert done(env.run("echo on")).output == "on\n"


def test_tasks_wait_for_a_service_that_is_dead(mortal: ServiceProcess, env_of_mortal: RemoteEnvironment) -> None:
    async def use() -> str:
        env = await AsyncRemoteEnvironment.attach(env_of_mortal.id, url=mortal.url, api_key=mortal.key)
        running = asyncio.create_task(env.run("echo x >> n; sleep 3; cat n"))
        while not (await env.read("n")).ok:  # noqa: ASYNC110  # nobody tells when it is there
            await asyncio.sleep(0.05)
        mortal.kill()
        await asyncio.to_thread(mortal.start)
        output = done(await running).output
        await env.close()
        return output

    assert asyncio.run(use()) == "x\n"


def test_output_goes_on_after_the_service_was_dead(mortal: ServiceProcess, env_of_mortal: RemoteEnvironment) -> None:
    env, answers, told = env_of_mortal, list[Any](), list[str]()
    command = "for i in $(seq 12); do echo line $i; sleep 0.5; done"
    running = threading.Thread(target=lambda: answers.append(env.run(command, on_output=lambda _, text: told.append(text))))
    running.start()
    assert eventually(lambda: "line 2\n" in "".join(told))
    mortal.kill()
    mortal.start()
    running.join(60)
    whole = "".join(f"line {n}\n" for n in range(1, 13))
    assert done(answers[0]).output == whole
    assert "".join(told) == whole


def test_a_service_that_stays_away(
    mortal: ServiceProcess, env_of_mortal: RemoteEnvironment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = env_of_mortal
    monkeypatch.setattr("sandbox.client.http.service.RECONNECT_SECONDS", 0.5)
    monkeypatch.setattr("sandbox.client.environment.CLOSE_SECONDS", 0.5)
    mortal.kill()
    failure = refused(env.run("true"), "sandbox_unavailable", mortal.url, "goes on until its time to live is over")
    assert failure.reason == "service_unreachable"
    assert env.describe()["sandbox"]
    with caplog.at_level(logging.WARNING, "sandbox.client"):
        began = time.monotonic()
        env.close()
        assert time.monotonic() - began < 30
    assert env.id in caplog.text
