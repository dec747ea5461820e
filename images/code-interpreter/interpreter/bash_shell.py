"""A shell whose variables and folder stay from cell to cell: one bash, given its cells over a pipe."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import os
import shlex
import signal
from datetime import UTC, datetime

from errors import KernelDiedError
from outputs import Outputs

# Cells come to bash on one descriptor and the status of each goes out on another: from here on, away from those that code names.
LOWEST_DESCRIPTOR = 230
# While a cell runs, bash keeps copies of three descriptors from 10 on: they come above these, which are all /dev/null.
_HELD = range(10, 20)
START_SECONDS = 30.0
# What programs print that still run after their cell is in the output of the next one.
MOST_KEPT = 64 << 10
# An interrupt is sent so often, and so far apart, while the cell goes on; it waits for a cell that has not begun.
MOST_INTERRUPTS, AGAIN_SECONDS, BEGIN_SECONDS = 10, 0.5, 0.02
_READ_BYTES = 64 << 10
_MOST_STATUS = 256


class BashShell:
    """One bash. It is interactive, for only then does an interrupt end the whole cell; it has no terminal and no job control."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._process: asyncio.subprocess.Process | None = None
        self._ends: list[int] = []
        self._bash_reads = self._bash_writes = -1  # as bash names these two descriptors
        self._outputs: Outputs | None = None
        self._serial = self._count = 0
        self._lines = self._unread = b""  # what bash is still to get: on its input, and as code
        self._begun = self._interruptible = False
        self._status = b""
        self._ended: asyncio.Future[int] | None = None
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        self._kept: dict[str, str] = {"stdout": "", "stderr": ""}

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, and return when it answers. Raises KernelDiedError, OSError."""
        pipes = [os.pipe() for _ in range(5)]
        (in_r, self._in), (cell_r, self._cells), (self._out, out_w), (self._err, err_w), (self._done, done_w) = pipes
        theirs = [in_r, cell_r, out_w, err_w, done_w]
        self._ends = [self._in, self._cells, self._out, self._err, self._done]
        try:
            theirs.extend(fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR) for each in (cell_r, done_w))
            self._bash_reads, self._bash_writes = theirs[-2:]
            self._process = await asyncio.create_subprocess_exec(
                *("bash", "--norc", "--noprofile", "--noediting", "-i"),
                cwd=self._cwd,
                env={**os.environ, "PS1": "", "PS2": "", "PS4": "+ "},
                stdin=in_r,
                stdout=out_w,
                stderr=err_w,
                pass_fds=(self._bash_reads, self._bash_writes),
                start_new_session=True,
            )
        finally:
            for each in theirs:
                os.close(each)
        loop = asyncio.get_running_loop()
        for each in self._ends:
            os.set_blocking(each, False)
        loop.add_reader(self._out, self._read, self._out, "stdout")
        loop.add_reader(self._err, self._read, self._err, "stderr")
        loop.add_reader(self._done, self._read_status)
        try:
            async with asyncio.timeout(START_SECONDS):
                held = " ".join(f"{number}</dev/null" for number in _HELD)
                self._lines = f"exec {held}; unset HISTFILE; set +H\n".encode()
                await self._carry_out("", "")
        except TimeoutError:
            raise KernelDiedError(f"bash did not answer within {START_SECONDS:.0f} s of its start.") from None
        self._kept = {"stdout": "", "stderr": ""}  # it has said that it has no terminal

    async def run(self, code: str, env: dict[str, str], outputs: Outputs) -> None:
        """Run code to its end, with these variables meanwhile. Raises KernelDiedError."""
        self._outputs = outputs
        self._count += 1
        outputs.count(self._count)
        for name, text in self._kept.items():
            if text:
                outputs.stream(name, text, _now())
        self._kept = {"stdout": "", "stderr": ""}
        try:
            status = await self._carry_out("; ".join(_set(*each) for each in env.items()), code, interruptible=True)
            if env:
                await self._carry_out("; ".join(map(_restore, env)), "")
            for name, decoder in self._decoders.items():
                if text := decoder.decode(b"", True):
                    outputs.stream(name, text, _now())
        finally:
            self._outputs = None
        if status:
            outputs.error("ExitCode", str(status))

    async def _carry_out(self, before: str, code: str, *, interruptible: bool = False) -> int:
        """Run ``before`` and ``code``; return the exit status of the latter. Raises KernelDiedError."""
        assert self._process is not None
        self._serial += 1
        self._begun, self._interruptible = False, interruptible
        self._ended = asyncio.get_running_loop().create_future()
        died = asyncio.ensure_future(self._process.wait())
        self._lines += self._cell_lines(' eval "${__gamebox_cell#* }";' if before else "")
        self._unread += f"{self._serial} {before}\0{code}\0".encode("utf-8", "replace")
        writing = asyncio.ensure_future(self._write())
        try:
            await asyncio.wait([self._ended, died], return_when=asyncio.FIRST_COMPLETED)
            self._drain()
            if not self._ended.done():
                raise KernelDiedError(f"bash ended with status {died.result()}.")
            return self._ended.result()
        finally:
            writing.cancel()
            died.cancel()

    def _cell_lines(self, set_variables: str) -> bytes:
        """The lines that bash gets for a cell: few enough bytes for a pipe to take all of them or none.

        The first one reads the cell, leaving out what an interrupted one has left unread, and runs it. An interrupt takes bash from
        there to the others, as ``_otherwise`` says.
        """
        cells, status = self._bash_reads, self._bash_writes
        read, another = f"IFS= \\builtin read -r -u {cells} -d ''", f"[[ $__gamebox_cell != '{self._serial} '* ]]"
        return (
            f"{{ while {read} __gamebox_cell && {another}; do :; done; {read} __gamebox_code; }} 2>/dev/null;"
            f'{set_variables} {{ \\builtin printf \'%s begun\\0\' {self._serial} >&{status}; }} 2>/dev/null;'
            f' eval "$__gamebox_code" </dev/null {cells}<&- {status}>&-;'
            f" {{ \\builtin printf '%s %s\\0' {self._serial} $? >&{status}; PS1= PS2= PROMPT_COMMAND=; }} 2>/dev/null\n"
        ).encode() + self._otherwise()

    def _otherwise(self) -> bytes:
        """The lines with which a cell ends whose own line bash has dropped, as it does when it is interrupted.

        What has ended already has its status: that of these lines is then not looked at.
        """
        status = f"\\builtin printf '%s 130\\0' {self._serial} >&{self._bash_writes}"
        return f"{{ PS1= PS2= PROMPT_COMMAND=; }} 2>/dev/null\n{{ {status}; }} 2>/dev/null\n".encode()

    async def _write(self) -> None:
        """Write what bash is still to get, until it has it or has ended."""
        while self._ends and (self._lines or self._unread):
            try:
                if self._lines:
                    self._lines = self._lines[os.write(self._in, self._lines) :]
                else:
                    self._unread = self._unread[os.write(self._cells, self._unread) :]
            except BlockingIOError:
                await asyncio.sleep(0.002)
            except OSError:  # it has ended
                return

    def _read(self, end: int, name: str) -> bool:
        """Read what there is; return whether there may be more."""
        try:
            data = os.read(end, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(end)
            return False
        text = self._decoders[name].decode(data)
        if self._outputs is not None:
            self._outputs.stream(name, text, _now())
        else:
            self._kept[name] = (self._kept[name] + text)[-MOST_KEPT:]
        return True

    def _drain(self) -> None:
        """Read what the cell has printed before its end; programs that it left running may print without one."""
        if not self._ends:  # it was stopped: other files may have their numbers
            return
        for end, name in ((self._out, "stdout"), (self._err, "stderr")):
            for _ in range(64):
                if not self._read(end, name):
                    break

    def _read_status(self) -> None:
        try:
            data = os.read(self._done, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._done)
            return
        *whole, rest = (self._status + data).split(b"\0")
        self._status = rest[-_MOST_STATUS:]
        for each in whole:
            serial, _, status = each.partition(b" ")
            if serial != str(self._serial).encode() or self._ended is None or self._ended.done():
                continue
            if status == b"begun":
                self._begun = True
            elif status.isdigit() and len(status) < 4:
                self._ended.set_result(int(status))

    def interrupt(self) -> None:
        """Interrupt the cell, with the programs that it runs."""
        if self._interruptible:
            self._interrupt(self._serial, MOST_INTERRUPTS)

    def _interrupt(self, serial: int, left: int) -> None:
        """Send the signal, and again while the cell goes on: a program that bash was just about to start loses it.

        Not before the cell has begun, for bash would lose a part of the line that it reads then, and run the rest.
        """
        if not left or not self._ends or serial != self._serial or self._ended is None or self._ended.done():
            return
        if self._begun:
            self._signal(signal.SIGINT)
            # If the cell had just ended, bash may lose a part of the line that it reads next.
            self._lines += b":\n" + self._otherwise()
            with contextlib.suppress(OSError):
                self._lines = self._lines[os.write(self._in, self._lines) :]
        again = (AGAIN_SECONDS, left - 1) if self._begun else (BEGIN_SECONDS, left)
        asyncio.get_running_loop().call_later(again[0], self._interrupt, serial, again[1])

    async def stop(self) -> None:
        """End it, with what it has started and not detached."""
        loop = asyncio.get_running_loop()
        ends, self._ends = self._ends, []
        for end in ends:
            loop.remove_reader(end)
        try:
            if self._process is not None:
                self._signal(signal.SIGKILL)
                await self._process.wait()
        finally:
            for end in ends:
                os.close(end)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _set(name: str, value: str) -> str:
    kept = f"if [[ -v {name} ]]; then __gamebox_old_{name}=${name}; fi"
    return f"{kept}; export {name}={shlex.quote(value)}"


def _restore(name: str) -> str:
    old = f"__gamebox_old_{name}"
    return f"if [[ -v {old} ]]; then {name}=${old}; unset {old}; else unset {name}; fi"


def _now() -> str:
    return datetime.now(UTC).isoformat()
