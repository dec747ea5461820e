"""Requests that are awaited in an asyncio loop: no thread waits for an answer, and cancelling a task ends what can be ended."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandbox import AsyncEnvironment, LocalEnvironment
from sandbox.errors import ErrorCode, SandboxError, SandboxUnavailableError
from sandbox.guest.protocol import wire
from sandbox.guest.protocol.wire import Kind
from sandbox.operations import Stat
from sandbox.pipe import awaiting
from sandbox.pipe.pending_request import PendingRequest
from sandbox.pipe.transport import Transport
from sandbox.pipe.watching import CancelToken, Watch
from sandbox.testing import GuestRequest, ScriptedGuest

from .talking import echo, explain, pong_and_echo, send_in_pieces, silent, talk


def names() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate())


def test_two_hundred_awaited_runs_start_no_thread() -> None:
    async def main() -> None:
        async with AsyncEnvironment(LocalEnvironment()) as env:
            before = set(threading.enumerate())  # of which those of earlier tests may end
            assert names().count("gamebox-reader") == 1
            found = await asyncio.gather(*(env.run(f"echo {n}", session=None) for n in range(200)))
            assert [each.unwrap().stdout for each in found] == [f"{n}\n" for n in range(200)]
            assert (await env.perform(Stat(path="."))).ok
            assert not (await env.execute("stat", {"path": 7})).ok
            waits = [asyncio.ensure_future(env.wait_for(file=f"never{n}", timeout_seconds=60)) for n in range(20)]
            await asyncio.sleep(0.1)
            assert not set(threading.enumerate()) - before
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            assert all(wait.cancelled() for wait in waits)
            assert not set(threading.enumerate()) - before

    asyncio.run(main())


def test_output_that_a_loop_takes_is_streamed_without_a_thread() -> None:
    async def main() -> None:
        async with AsyncEnvironment(LocalEnvironment()) as env:
            before = set(threading.enumerate())

            async def room(size: int) -> None:
                assert size > 0

            async def streamed(number: int) -> bytes:
                printed: list[tuple[str, bytes]] = []
                watch = Watch(on_bytes=lambda stream, data: printed.append((stream, data)), room=room)
                args = {"command": f"echo {number}; sleep 0.2; echo more >&2", "session": None}
                answer = await env.execute("run", args, watch=watch)
                assert answer.unwrap().stdout == f"{number}\n"
                assert printed[-1] == ("stderr", b"more\n")
                assert not set(threading.enumerate()) - before
                return b"".join(data for stream, data in printed if stream == "stdout")

            found = await asyncio.gather(*(streamed(number) for number in range(20)))
            assert found == [f"{number}\n".encode() for number in range(20)]

    asyncio.run(main())


@pytest.mark.parametrize("end", ["read", "token", "task"])
def test_a_command_waits_for_who_takes_its_output_in_a_loop_until_that_ends(tmp_path: Path, end: str) -> None:
    async def main() -> None:
        async with AsyncEnvironment(LocalEnvironment(tmp_path)) as env:
            open_again, waits, sizes, token = asyncio.Event(), asyncio.Event(), [], CancelToken()

            async def room(size: int) -> None:
                sizes.append(size)
                if len(sizes) > 3:
                    waits.set()
                    while not (open_again.is_set() or token.cancelled):  # noqa: ASYNC110  # cancelled by any thread
                        await asyncio.sleep(0.01)

            watch = Watch(on_bytes=lambda *_: None, room=room, cancel=token)
            # What is stopped is not waited for any more, and would print its end if it had one.
            command = f"{'head -c 20000000' if end == 'read' else 'cat'} /dev/zero && touch printed"
            task = asyncio.ensure_future(env.execute("run", {"command": command, "session": None}, watch=watch))
            await waits.wait()
            await asyncio.sleep(0.2)
            assert not (tmp_path / "printed").exists()
            if end == "read":
                open_again.set()
                assert (await task).unwrap().exit_code == 0
                assert sum(sizes) == 20_000_000
            elif end == "token":
                token.cancel()
                assert getattr(await task, "code", None) == ErrorCode.cancelled
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (tmp_path / "printed").exists() == (end == "read")
            assert [c for c in (await env.processes()).unwrap().commands if c.running] == []

    asyncio.run(main())


def test_what_was_awaited_leaves_nothing_for_the_collector_of_garbage() -> None:
    def count() -> int:
        return sum(isinstance(each, PendingRequest) for each in gc.get_objects())

    async def main() -> None:
        async with AsyncEnvironment(LocalEnvironment()) as env:
            await env.run("true")
            before = count()  # the greeting, which a thread has waited for
            await env.run("true")
            await env.stat(".")
            await holds(lambda: count() <= before)  # a thread may be asking whether the guest is there

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_command_has_ended_when_the_cancellation_of_its_task_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncEnvironment(LocalEnvironment(tmp_path)) as env:
            task = asyncio.ensure_future(env.run("touch began; sleep 60; touch ended"))
            await holds((tmp_path / "began").exists)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [c for c in (await env.processes()).unwrap().commands if c.running] == []
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(env.run("sleep 60"), 0.2)
            assert (await env.run("echo on")).unwrap().stdout == "on\n"

    asyncio.run(main())


async def request(host: Transport, seconds: float = 60.0, **options: Any) -> tuple[dict[str, Any], bytes]:
    return await awaiting.request(host, "read", {}, timeout_seconds=seconds, **{"stoppable": False, **options})


def test_a_request_that_a_full_pipe_takes_in_pieces_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with talk(pong_and_echo) as (host, guest):
        send_in_pieces(guest, monkeypatch)
        assert asyncio.run(request(host))[0]["result"] == {}


async def holds(what: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not what():  # noqa: ASYNC110  # a file, or another thread
            await asyncio.sleep(0.001)


def test_what_cannot_be_stopped_goes_on_when_its_task_is_cancelled_and_is_forgotten_when_answered() -> None:
    asked: list[GuestRequest] = []

    def script(guest: ScriptedGuest, found: GuestRequest) -> None:
        asked.append(found)
        if found.operation == "stat":
            for each in asked:
                guest.reply(each)

    async def main(host: Transport, guest: ScriptedGuest) -> None:
        task = asyncio.ensure_future(request(host))
        await holds(lambda: asked)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(host._pending) == 1
        await asyncio.to_thread(host.request, "stat", {}, timeout_seconds=60)
        assert not host._pending
        assert Kind.CANCEL not in [kind for kind, _, _ in guest.heard]

    with talk(script) as (host, guest):
        asyncio.run(main(host, guest))


def test_a_token_stops_what_is_awaited() -> None:
    def script(guest: ScriptedGuest, found: GuestRequest) -> None:
        def stop() -> None:
            guest.wait_for(Kind.CANCEL, 60)
            guest.reply(found, "stopped")

        threading.Thread(target=stop).start()

    async def main(host: Transport) -> None:
        token = CancelToken()
        asyncio.get_running_loop().call_later(0.05, token.cancel)
        fields, _ = await request(host, stoppable=True, watch=Watch(cancel=token))
        assert fields["result"] == "stopped"

    with talk(script) as (host, _):
        asyncio.run(main(host))


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
def test_a_request_of_any_size_is_sent_whole(size: int) -> None:
    blob = bytes(range(256)) * (size // 256 + 1)

    async def main(host: Transport) -> None:
        found = await asyncio.gather(*(request(host, blob=blob) for _ in range(5)))
        assert [reply[1] for reply in found] == [blob] * 5

    with talk(echo) as (host, _):
        asyncio.run(main(host))


def test_a_frame_that_the_pipe_takes_in_part_is_sent_whole_before_the_next() -> None:
    with talk(echo) as (host, _guest):
        offer = host.sender.offer

        def in_part(channel: int, frames: Sequence[tuple[int, bytes | memoryview]]) -> bool | None:
            with host.sender._lock:
                ((kind, payload),) = frames
                host.sender._begin(kind, channel, payload)
            return False

        async def main() -> None:
            host.sender.offer = in_part  # type: ignore[method-assign]
            assert (await request(host))[0]["result"] == {}
            host.sender.offer = offer  # type: ignore[method-assign]
            assert (await request(host))[0]["result"] == {}

        asyncio.run(main())


def test_silence_and_the_end_of_the_pipe_are_raised() -> None:
    async def main(host: Transport, guest: ScriptedGuest) -> None:
        with pytest.raises(SandboxUnavailableError, match="did not answer"):
            await request(host, seconds=0.01)
        asyncio.get_running_loop().call_later(0.05, guest.hang_up)
        with pytest.raises(SandboxUnavailableError, match="pipe_broken"):
            await request(host)
        with pytest.raises(SandboxError):
            await request(host)

    with talk(silent) as (host, guest):
        asyncio.run(main(host, guest))


def test_an_answer_after_the_end_of_the_loop_harms_nothing() -> None:
    asked: list[GuestRequest] = []

    async def main(host: Transport) -> None:
        task = asyncio.ensure_future(request(host, stoppable=True))
        await holds(lambda: asked)
        assert not task.done()

    def script(guest: ScriptedGuest, found: GuestRequest) -> None:
        asked.append(found)
        if found.operation == "stat":
            guest.reply(found)

    with ScriptedGuest(script) as guest:
        host = Transport(guest.stream, explain)
        host.open({}, 60)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main(host))
        loop.close()  # the task was never ended
        guest.frame(Kind.REPLY, asked[0].channel, wire.pack_message({"result": None}))
        assert host.request("stat", {}, timeout_seconds=60)[0]["result"] is None
        host.close()
