"""The output of a command that prints much is read once in a while; both streams stay in the order of arrival."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.guest.commands import command as module
from sandbox.guest.commands.command import GATHER_PIPE_BYTES, MUCH_OUTPUT_BYTES, Command
from sandbox.guest.commands.output import STDERR, STDOUT, Output
from sandbox.guest.loop.reactor import Reactor


class Printing:
    """A command whose pipes the test writes to."""

    def __init__(self, folder: Path) -> None:
        self.reactor = Reactor()
        self.output = Output(os.fsencode(folder / "spill"), 16 << 20, 64 << 20, lambda: False)
        self.command = Command("c1", self.output, self.reactor, lambda _: None)
        self.read_ends, self.write_ends = {}, {}
        for stream in (STDOUT, STDERR):
            self.read_ends[stream], self.write_ends[stream] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self.command._pipes[self.read_ends[stream]] = stream
            self.command._watch(self.read_ends[stream])

    def print(self, data: bytes, stream: int = STDOUT) -> None:
        assert os.write(self.write_ends[stream], data) == len(data)

    def watched(self, stream: int = STDOUT) -> bool:
        return self.read_ends[stream] in self.reactor._callbacks

    def prints_much(self) -> None:
        while self.output.total <= MUCH_OUTPUT_BYTES:
            assert self.watched()
            self.print(b"x" * 8192)
            self.reactor._serve(0)

    def end(self) -> None:
        self.command.close()
        for fd in self.write_ends.values():
            os.close(fd)


@pytest.fixture
def printing(tmp_path: Path) -> Iterator[Printing]:
    made = Printing(tmp_path)
    yield made
    made.end()


def test_it_is_read_again_after_a_moment_and_its_pipe_holds_what_comes_until_then(printing: Printing) -> None:
    printing.prints_much()
    assert not printing.watched()
    before = printing.output.total
    assert fcntl.fcntl(printing.read_ends[STDOUT], fcntl.F_GETPIPE_SZ) == GATHER_PIPE_BYTES
    for _ in range(GATHER_PIPE_BYTES // 8192):
        printing.print(b"y" * 8192)
    printing.reactor._serve(0)
    assert printing.output.total == before
    while not printing.watched():
        printing.reactor._run_timers()
    for _ in range(8):
        printing.reactor._serve(0)
    assert printing.output.total == before + GATHER_PIPE_BYTES


def test_what_was_printed_before_on_the_other_stream_comes_before(printing: Printing) -> None:
    printing.prints_much()
    printing.print(b"last words")
    printing.print(b"error", STDERR)
    printing.reactor._serve(0)
    segments, data = printing.output.segments()
    assert data.endswith(b"x" * 10 + b"last words" + b"error")
    assert [stream for stream, _, _ in segments] == [STDOUT, STDERR]


def test_the_end_takes_what_waits(printing: Printing) -> None:
    printing.prints_much()
    printing.print(b"last words")
    printing.command.end()
    assert printing.output.segments()[1].endswith(b"last words")


def test_a_pipe_that_cannot_be_enlarged_is_read_at_once(printing: Printing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_PIPE_BYTES", 1 << 40)  # more than the kernel gives
    printing.prints_much()
    assert printing.watched()
