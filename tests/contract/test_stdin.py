"""Standard input of any size and from any source, streamed no faster than the command reads (FOREIGN 4: 50 MiB of stdin)."""

from __future__ import annotations

import asyncio
import hashlib
import io
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox import AsyncEnvironment, LocalEnvironment
from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.guest.protocol.wire import WINDOW

from .checks import done, refused

MIB = 1 << 20
# What both ends of a connection on loopback, and the service, may hold.
HELD_BY_TCP = 64 * MIB
BLOCK = bytes(range(256)) * 256
SUM = "sha256sum | cut -c 1-64"


def blocks(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield BLOCK


def digest(count: int) -> str:
    return hashlib.sha256(BLOCK * count).hexdigest() + "\n"


@pytest.mark.needs("shell")
def test_fifty_mebibytes_whatever_write_bytes_is(env: SandboxedEnvironment) -> None:
    """FOREIGN 1 and 4 (inspect's test_exec_input_large): the limit of ``write`` bounded stdin, and no page said so."""
    assert env.limits.write_bytes == MIB
    assert done(env.run(SUM, stdin=BLOCK * 800)).output == digest(800)
    text = "0123456789abcdef" * MIB
    assert done(env.run("wc -c", stdin=text)).output == f"{16 * MIB}\n"


@pytest.mark.needs("shell")
def test_a_binary_file_and_an_iterator(env: SandboxedEnvironment, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(BLOCK * 80)
    with (tmp_path / "data").open("rb") as file:
        assert done(env.run(SUM, stdin=file)).output == digest(80)
        assert not file.closed
    assert done(env.run(SUM, stdin=blocks(80))).output == digest(80)
    assert done(env.run(SUM, stdin=[b"", bytearray(BLOCK), memoryview(BLOCK)])).output == digest(2)
    assert done(env.run("cat; printf end", stdin=iter(()))).output == "end"


@pytest.mark.needs("commands")
def test_every_source_is_read_by_every_environment(env: SandboxedEnvironment) -> None:
    for source in (b"one\ntwo\n", "one\ntwo\n", io.BytesIO(b"one\ntwo\n"), iter([b"one\n", b"two\n"])):
        assert done(env.run("cat", stdin=source)).output == "one\ntwo\n"


@pytest.mark.needs("shell")
def test_the_source_waits_for_the_command(env: SandboxedEnvironment) -> None:
    """An endless source is read no further than the command reads, and one window."""
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += len(BLOCK)
            yield BLOCK

    assert done(env.run(f"head -c {5 * MIB} | wc -c; exec <&-; sleep 0.2", stdin=endless())).output == f"{5 * MIB}\n"
    held = 2 * WINDOW + (HELD_BY_TCP if type(env).__name__ == "RemoteEnvironment" else 0)
    assert taken <= 5 * MIB + held
    seen = taken
    time.sleep(0.1)
    assert taken - seen <= len(BLOCK)


@pytest.mark.needs("shell")
def test_input_and_output_at_once(env: SandboxedEnvironment) -> None:
    """A command that prints while it reads: neither direction waits for the other for ever."""
    size = 0

    def count(_: str, text: str) -> None:
        nonlocal size
        size += len(text)

    ran = done(env.run("cat", stdin=(b"x" * MIB for _ in range(20)), on_output=count, keep_output_bytes=0))
    assert (size, ran.output_bytes) == (20 * MIB, 20 * MIB)


@pytest.mark.needs("shell")
def test_a_source_that_fails_stops_the_command(env: SandboxedEnvironment) -> None:
    def failing() -> Iterator[bytes]:
        yield b"begun\n"
        raise LookupError("the source is gone")

    with pytest.raises(LookupError, match="the source is gone"):
        env.run("cat; echo whole > whole", stdin=failing(), session=None)
    assert done(env.run("ls whole", session=None)).exit_code != 0
    with pytest.raises(TypeError, match="open the file in binary mode"):
        env.run("cat", stdin=io.StringIO("text"))  # type: ignore[arg-type]


@pytest.mark.needs("shell")
def test_a_silent_source_holds_up_nothing(env: SandboxedEnvironment) -> None:
    """A source that never answers: the command's deadline holds, and a command that ends is answered."""
    release = threading.Event()

    def silent() -> Iterator[bytes]:
        yield b"first\n"
        release.wait(60)

    try:
        refused(env.run("cat", stdin=silent(), timeout_seconds=0.3), "timeout", effects="unknown")
        assert done(env.run("head -n 1", stdin=silent())).output == "first\n"
    finally:
        release.set()


@pytest.mark.needs("shell")
def test_input_of_a_command_that_nobody_waits_for(env: SandboxedEnvironment) -> None:
    for options in ({"background": True}, {"wait_seconds": 5}):
        refused(env.run("cat", stdin=blocks(1), **options), "invalid_arguments", "redirect")
    server = done(env.run("wc -c", stdin=BLOCK * 64, background=True)).id
    env.wait_for(id=server, exit=True).unwrap()
    assert env.logs(server).unwrap().content == f"{4 * MIB}\n"


@pytest.mark.needs("shell")
def test_a_message_names_the_limit_that_was_hit(env: SandboxedEnvironment) -> None:
    """FOREIGN 4: one sentence named two limits of ``run``, whichever was hit."""
    failure = refused(env.run("true", keep_output_bytes=env.limits.spill_bytes + 1), "invalid_arguments", "keep_output_bytes")
    assert "stdin" not in failure.error


@pytest.mark.needs("shell")
def test_many_small_pieces(env: SandboxedEnvironment) -> None:
    assert done(env.run("wc -c", stdin=(b"x" for _ in range(20_000)))).output == "20000\n"


def test_asynchronous_sources() -> None:
    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(40):
            await asyncio.sleep(0)
            yield BLOCK

    async def main() -> None:
        async with AsyncEnvironment(LocalEnvironment()) as env:
            assert (await env.run(SUM, stdin=slowly())).unwrap().output == digest(40)
            assert (await env.run("cat", stdin=io.BytesIO(b"file"))).unwrap().output == "file"
            large = await env.run(argv=["wc", "-c"], stdin="a" * (9 * MIB), session=None)  # more than a request holds
            assert large.unwrap().output == f"{9 * MIB}\n"
            async with env.stream("cat", stdin=slowly()) as output:
                assert sum([len(chunk.text) async for chunk in output]) > 0

    asyncio.run(main())
