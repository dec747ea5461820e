"""The output of commands that run, as it comes and from any place on; and what is told of their end."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sandbox import AsyncEnvironment, CancelToken, FakeEnvironment
from sandbox.envelope import Envelope
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.operations import RunResult
from sandbox.testing import Ran

from .checks import begun, codes_of, done, refused, seen_until, so_far, with_more_time


def background(env: SandboxedEnvironment, command: str, **options: str) -> str:
    return done(env.run(command, background=True, session=None, **options)).id  # type: ignore[arg-type]


def text_of(env: SandboxedEnvironment, ident: str, offset: int = 0) -> str:
    return "".join(chunk.text for chunk in env.follow(ident, offset=offset))


@pytest.mark.needs("commands")
def test_the_last_part_of_an_output(env: SandboxedEnvironment) -> None:
    ident = done(env.run("printf hello", session=None)).id
    logs = done(env.logs(ident, offset=-2))
    assert (logs.content, logs.offset, logs.next_offset) == ("lo", 3, 5)
    assert done(env.logs(ident, offset=-500)).offset == 0
    assert done(env.logs(ident, tail_lines=1)).content == "hello"
    refused(env.logs(ident, offset=-5, tail_lines=1), "invalid_arguments", "exclude each other")


@pytest.mark.needs("shell")
@pytest.mark.parametrize(
    ("printed", "lines", "expected"),
    [
        ("a\\nb\\nc\\n", 2, "b\nc\n"),
        ("a\\nb\\nc", 2, "b\nc"),
        ("a\\nb\\n", 9, "a\nb\n"),
        ("\\n\\n\\n", 2, "\n\n"),
        ("a", 1, "a"),
        ("", 3, ""),
    ],
)
def test_the_last_lines(env: SandboxedEnvironment, printed: str, lines: int, expected: str) -> None:
    ident = done(env.run(f"printf '{printed}'", session=None)).id
    assert done(env.logs(ident, tail_lines=lines)).content == expected


@pytest.mark.needs("shell")
def test_the_last_lines_of_much(env: SandboxedEnvironment) -> None:
    ident = done(env.run("seq 500000; printf ääääää", session=None)).id
    assert done(env.logs(ident, tail_lines=3)).content == "499999\n500000\nääääää"
    logs = done(env.logs(ident, offset=-5))
    assert (logs.content, logs.encoding_errors) == ("ää", False)
    few = done(env.logs(ident, tail_lines=100_000, max_bytes=100))
    assert (len(few.content_bytes), few.next_offset) == (100, few.total_bytes)


@pytest.mark.needs("shell")
def test_output_is_followed_to_the_end(env: SandboxedEnvironment, folder: str) -> None:
    ident = background(
        env, "echo 1; for n in 2 3; do until [ -e go$n ]; do sleep 0.01; done; echo $n; done; exit 4", cwd=folder
    )
    following = env.follow(ident)
    told = []
    for chunk in following:
        told.append(chunk)
        if len(told) < 3:
            assert following.ended is None
            done(env.write(f"{folder}/go{len(told) + 1}", ""))
    assert [(c.text, c.next_offset) for c in told] == [("1\n", 2), ("2\n", 4), ("3\n", 6)]
    assert following.ended is not None
    assert (following.ended.exit_code, following.ended.running) == (4, False)
    assert text_of(env, ident, 2) == "2\n3\n"
    assert text_of(env, ident) == "1\n2\n3\n"


@pytest.mark.needs("shell")
def test_many_follow_the_same_command(env: SandboxedEnvironment, folder: str) -> None:
    ident = background(
        env, "until [ -e go ]; do sleep 0.01; done; seq 100000; printf '\\303'; sleep 0.1; printf '\\251'", cwd=folder
    )
    expected = "".join(f"{n}\n" for n in range(1, 100_001)) + "é"
    with ThreadPoolExecutor(20) as pool:
        readers = [pool.submit(text_of, env, ident) for _ in range(20)]
        done(env.write(f"{folder}/go", ""))
        assert all(reader.result(timeout=30) == expected for reader in readers)


@pytest.mark.needs("shell")
def test_following_ends_with_the_command_and_not_with_what_it_leaves(env: SandboxedEnvironment) -> None:
    ident = background(env, "sleep 600 & echo started")
    assert text_of(env, ident) == "started\n"
    done(env.kill(ident))


@pytest.mark.needs("shell")
def test_a_wait_for_output_ends_in_time_or_by_its_token(env: SandboxedEnvironment) -> None:
    ident = background(env, "sleep 600")
    began = time.monotonic()
    waited = done(env.logs(ident, follow=True, wait_seconds=0.3))
    assert 0.3 <= time.monotonic() - began < 60
    assert (waited.content, waited.running) == ("", True)
    # What it waits for is looked up in a short time of its own.
    logs = seen_until(lambda: env.logs(ident), lambda answer: done(answer).waiting_for is not None)
    assert done(logs).waiting_for is not None
    token = CancelToken()
    threading.Timer(0.2, token.cancel).start()
    refused(env.logs(ident, follow=True, wait_seconds=600, cancel=token), "cancelled")
    waiting = ThreadPoolExecutor(1).submit(env.logs, ident, follow=True, wait_seconds=600)
    time.sleep(0.1)
    done(env.kill(ident))
    ended = done(waiting.result(timeout=60))
    assert (ended.running, ended.signal, ended.stop_reason) == (False, "SIGKILL", "killed")


@pytest.mark.needs("shell")
def test_asyncio_follows_and_a_cancelled_task_leaves_the_command_alone(env: SandboxedEnvironment, folder: str) -> None:
    async def work() -> None:
        async with asyncio.timeout(60):
            aio = AsyncEnvironment(env)
            ident = done(
                await aio.run("echo 1; until [ -e go ]; do sleep 0.01; done; echo 2", background=True, cwd=folder)
            ).id
            texts = []
            async for chunk in aio.follow(ident):
                texts.append(chunk.text)
                await aio.write(f"{folder}/go", "")
            assert texts == ["1\n", "2\n"]
            ident = done(await aio.run("sleep 600", background=True)).id
            crowd = [asyncio.create_task(anext(aio.follow(ident))) for _ in range(100)]
            await asyncio.sleep(0.2)
            assert done(await aio.list(folder)).entries
            for task in crowd:
                task.cancel()
            assert all(
                isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*crowd, return_exceptions=True)
            )
            assert done(await aio.logs(ident)).running
            await aio.kill(ident)

    asyncio.run(work())


# --- commands that were waited for at first ------------------------------------------------------------------------------


@pytest.mark.needs("shell")
def test_a_watched_command_that_goes_on_waits_for_no_reader(env: SandboxedEnvironment, folder: str) -> None:
    told: list[str] = []

    def slowly(stream: str, text: str) -> None:
        told.append(text)
        time.sleep(0.001)

    script = "seq 400000; until [ -e go ]; do sleep 0.01; done; seq 400000; echo end"
    envelope = env.run(script, cwd=folder, session=None, on_output=slowly, wait_seconds=0.2)
    ran = done(envelope)
    assert (ran.running, codes_of(envelope)[:1]) == (True, ["still_running"])
    assert sum(map(len, told)) >= ran.output_bytes - 1
    before = len(told)
    done(env.write(f"{folder}/go", ""))
    for _ in env.follow(ran.id, offset=5_000_000):
        pass
    assert done(env.logs(ran.id, tail_lines=1)).content == "end\n"
    assert len(told) == before


@pytest.mark.needs("shell")
def test_a_terminal_is_watched(env: SandboxedEnvironment) -> None:
    told: list[tuple[str, str]] = []
    ran = done(env.run("tty; printf err >&2", pty=True, on_output=lambda stream, text: told.append((stream, text))))
    assert {stream for stream, _ in told} == {"stdout"}
    assert "".join(text for _, text in told) == ran.output
    assert ran.output.startswith("/dev/pts/")
    assert ran.output.endswith("err")


    def ask(seconds: float) -> RunResult:
        command, watch = "read -p 'name? ' n; echo hello $n", lambda _, text: told.append(("", text))
        return done(env.run(command, pty=True, session=None, wait_seconds=seconds, on_output=watch))

    asking = with_more_time(ask, lambda ran: ran.output == "name? ")
    assert told[-1] == ("", "name? ")
    done(env.send(asking.id, "you\n"))
    assert text_of(env, asking.id).endswith("hello you\r\n")
    assert told[-1] == ("", "name? ")


@pytest.mark.needs("shell")
def test_a_time_that_is_over_after_the_answer_is_told_as_that(env: SandboxedEnvironment, folder: str) -> None:
    def begin(seconds: float) -> tuple[float, Envelope[RunResult]]:
        return seconds, env.run("echo begun; sleep 600", wait_seconds=0.1, timeout_seconds=seconds, session=None)

    def said(tried: tuple[float, Envelope[RunResult]]) -> bool:
        return tried[1].ok and text_of(env, done(tried[1]).id) == "begun\n"

    seconds, answer = with_more_time(begin, said, 0.4)
    ran = done(answer)
    assert text_of(env, ran.id) == "begun\n"
    logs = done(env.logs(ran.id))
    assert (logs.running, logs.signal, logs.stop_reason) == (False, "SIGKILL", "timeout")
    assert "killed by SIGKILL: timeout" in logs.to_text()
    refused(env.send(ran.id, "x"), "command_ended", f"did not end within {seconds:g} seconds")
    seconds, other = begun(lambda most: env.run("sleep 600", wait_seconds=0.1, timeout_seconds=most, session=None))
    envelope = seen_until(lambda: env.list(folder), lambda each: "command_ended" in codes_of(each))
    notice = next(n for n in envelope.notices if n.code == "command_ended")
    message = f"The command {other.id} (sleep 600) was killed: it did not end within {seconds:g} seconds"
    assert notice.message.startswith(message)
    assert "timeout_seconds" in notice.hint
    failure = refused(env.run("sleep 600", timeout_seconds=0.2), "timeout", effects="unknown")
    assert done(env.logs(so_far(failure).id)).stop_reason == "timeout"


@pytest.mark.needs("shell")
def test_what_a_command_leaves_is_told_with_its_end(env: SandboxedEnvironment, folder: str) -> None:
    ident = background(env, "sleep 600 & sleep 601 & exit 0")
    envelope = seen_until(lambda: env.list(folder), lambda each: "command_ended" in codes_of(each))
    notice = next(n for n in envelope.notices if n.code == "command_ended")
    shown = "(sleep 600 & sleep 601 & exit 0)"
    assert notice.message == f"The command {ident} {shown} ended with exit code 0. It left 2 processes running."
    assert "2 processes left running" in done(env.logs(ident)).to_text()
    assert done(env.kill(ident)).killed == 2


def test_a_fake_follows_what_it_was_told() -> None:
    env = FakeEnvironment(commands={"a": Ran(stdout="1\n2\n3"), "forever": Ran(stdout="up", seconds=9)})
    ran = done(env.run("a", background=True))
    assert [c.text for c in env.follow(ran.id)] == ["1\n2\n3"]
    assert done(env.logs(ran.id, tail_lines=2)).content == "2\n3"
    forever = done(env.run("forever", background=True)).id
    assert done(env.logs(forever, follow=True)).content == "up"
    refused(env.logs(forever, offset=2, follow=True), "operation_not_supported", "cannot wait")
