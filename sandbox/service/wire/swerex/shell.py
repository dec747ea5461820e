"""A session of SWE-ReX: one bash with a terminal, whose prompt says when a command has ended, and with which status."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sandbox.envelope import Failure
from sandbox.operations import HostArguments
from sandbox.service.fleet.live_sandbox import LiveSandbox
from sandbox.service.fleet.terminal import Terminal

from .models import BashAction, BashInterruptAction, CreateSession, SwerexError, error_of

# Output beyond this is cut in the middle: SWE-agent shows its model 100,000 characters at most.
MOST_OUTPUT_BYTES = 1 << 20
START_SECONDS, LINE_SECONDS, AGAIN_SECONDS = 20.0, 10.0, 0.2
# What a terminal takes as one line while its shell does not edit it.
LINE_BYTES = 4095
# PS1 is set for each prompt, since programs such as virtual environments change it. The digits tell it from its own echo.
_SETUP = (
    " stty -echo -onlcr; PS0= PS2= GAMEBOX_TURN={turn}; gamebox_prompt() {{ PS1=$'\\037'{nonce}:$GAMEBOX_TURN:$?$'\\037'; }}; "
    "PROMPT_COMMAND=gamebox_prompt\n"
)
_MODES = " stty -echo -onlcr\n"
# In the arguments of a shell: its name and the text of its prompt, by which it is found again.
_MARK = "swerex"
_MARKED = re.compile(rf"{_MARK}:((?:[0-9a-f]{{2}}){{1,256}}):([0-9a-f]{{16}})")
_CONTROL = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")


@dataclass(slots=True)
class Found:
    """What was waited for: the output before it, the text of the prompt or of what was expected, and the status at a prompt."""

    output: str
    matched: str
    status: int | None


@dataclass(eq=False, slots=True)
class Shell:
    """A session. ``offset`` is how far its output was read; a command that timed out leaves its own to the next."""

    name: str
    terminal: Terminal
    nonce: str
    offset: int = 0
    # Of a shell that a service before this one started, a prompt may still come.
    turn: int = field(default_factory=lambda: secrets.randbelow(1 << 30))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def start(cls, live: LiveSandbox, asked: CreateSession) -> tuple[Shell, str]:
        """Start a shell; return it, and what it printed. Raises SwerexError."""
        nonce = secrets.token_hex(8)
        argv = ["sh", "-c", "exec bash --noediting", f"{_MARK}:{asked.session.encode().hex()}:{nonce}"]
        terminal, answer = await Terminal.start(live, {"argv": argv, "env": {"TERM": "dumb"}, "cols": 300})
        if terminal is None:
            raise error_of(answer)  # type: ignore[arg-type]
        shell = cls(asked.session, terminal, nonce)
        try:
            await shell._type(_SETUP.format(nonce=nonce, turn=shell.turn))
            await shell._until((), START_SECONDS)
            if not asked.startup_source:
                return shell, ""
            found = await shell._line("; ".join(f"source {path}" for path in asked.startup_source), (), asked.startup_timeout)
        except SwerexError:
            await terminal.kill()
            if await _has_bash(live):
                raise
            message = "The sandbox has no bash, which a session needs: create it with an image that has one, or use execute."
            raise SwerexError(message) from None
        except BaseException:
            await terminal.kill()
            raise
        return shell, found.output

    @classmethod
    async def find(cls, live: LiveSandbox) -> dict[str, Shell]:
        """Return the shells that run, by their names: those that a service before this one has started. Raises SandboxError."""
        answer = await (await live.ready()).processes()
        found = {}
        for each in answer.unwrap().commands:
            known = _MARKED.search(each.command)
            if known is not None and each.running:
                terminal, name = Terminal(live, each.id), bytes.fromhex(known[1]).decode(errors="replace")
                found[name] = cls(name, terminal, known[2], await terminal.printed())
        return found

    async def run(self, action: BashAction) -> dict[str, Any]:
        """Carry out a command, or type a line for the program that runs. Raises SwerexError."""
        async with self.lock:
            if action.is_interactive_command or action.is_interactive_quit:
                return await self._interact(action)
            await self._check_syntax(action.command)
            path = f"/tmp/.swerex-{self.nonce}"  # noqa: S108  # of the sandbox
            environment = await self.terminal.live.ready()
            uploaded = await environment.upload(action.command.encode("utf-8", "replace"), path)
            if isinstance(uploaded, Failure):
                raise error_of(uploaded)
            found = await self._line(f". {path}", action.expect, action.timeout, action.command)
        if action.check == "raise" and found.status != 0:
            said = f"Command {action.command!r} failed with exit code {found.status}. Here is the output:\n{found.output!r}"
            raise SwerexError(f"{action.error_msg}: {said}" if action.error_msg else said, "NonZeroExitCodeError")
        status = None if action.check == "ignore" else found.status
        return {"output": found.output, "exit_code": status, "expect_string": found.matched}

    async def interrupt(self, action: BashInterruptAction) -> dict[str, Any]:
        """Press Ctrl-C until something happens; then stop the job with Ctrl-Z, and kill it. Raises SwerexError."""
        for _ in range(action.n_retry):
            await self._type("\x03")
            try:
                found = await self._until(action.expect, action.timeout)
            except TimeoutError:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            return {"output": found.output.strip(), "exit_code": 0, "expect_string": found.matched}
        try:
            await self._type("\x1a")
            stopped = await self._until(action.expect, LINE_SECONDS)
            # What the shell says of the killed job is left to the next command, as SWE-ReX does.
            said_at = self.offset
            found = await self._line("kill -9 %1; wait %1", action.expect, LINE_SECONDS)
            self.offset = said_at
        except TimeoutError:
            raise SwerexError("Failed to interrupt session", "CommandTimeoutError") from None
        return {"output": stopped.output.strip(), "exit_code": 0, "expect_string": found.matched}

    async def close(self) -> None:
        """End the shell with all it started; one that has ended already is fine."""
        await self.terminal.kill()

    async def _interact(self, action: BashAction) -> dict[str, Any]:
        line = f"{action.command}\n"
        if max(len(part) for part in line.encode().split(b"\n")) > LINE_BYTES:
            raise SwerexError(f"A line for a program that runs has at most {LINE_BYTES} bytes.", "ValueError")
        await self._type(line)
        try:
            found = await self._until(action.expect, action.timeout)
        except TimeoutError:
            raise _timeout(action.command, action.timeout) from None
        if action.is_interactive_quit:
            await self._line(_MODES.strip(), (), LINE_SECONDS)
        # Programs that edit their lines echo them.
        output = found.output.removeprefix(action.command).removeprefix("\n") if action.is_interactive_command else found.output
        return {"output": output, "exit_code": 0, "expect_string": found.matched}

    async def _check_syntax(self, command: str) -> None:
        environment = await self.terminal.live.ready()
        args = HostArguments(argv=["bash", "-n"], stdin=command, session=None, timeout_seconds=LINE_SECONDS)
        answer = await environment.execute("run", args)
        if isinstance(answer, Failure):
            raise error_of(answer)
        result = answer.unwrap()
        if result.exit_code != 0:
            said = f"---- Stderr ----\n{result.stderr}\n---- Stdout ----\n{result.stdout}"
            message = f"Error (exit code {result.exit_code}) while checking bash command \n{command!r}\n{said}"
            raise SwerexError(message, "BashIncorrectSyntaxError", bash_stdout=result.stdout, bash_stderr=result.stderr)

    async def _line(self, line: str, expect: Sequence[str], seconds: float | None, said: str = "") -> Found:
        """Type a line for the shell, and wait for the prompt after it: one of an earlier command is not taken for it."""
        self.turn += 1
        await self._type(f" GAMEBOX_TURN={self.turn}; {line}\n")
        try:
            return await self._until(expect, seconds)
        except TimeoutError:
            raise _timeout(said or line, seconds) from None

    async def _type(self, text: str) -> None:
        if (failure := await self.terminal.type(text.encode("utf-8", "replace"))) is not None:
            raise error_of(failure)

    async def _until(self, expect: Sequence[str], seconds: float | None) -> Found:
        """Read until the prompt of the present turn, or one of the texts.

        Raises TimeoutError, and SwerexError if the shell has ended.
        """
        prompt = re.escape(f"\x1f{self.nonce}:{self.turn}:") + r"(\d{1,3})\x1f"
        texts = [re.escape(text) for each in expect for text in {each, re.sub(r"\\(\W)", r"\1", each)}]
        pattern = re.compile("|".join([*texts, prompt]).encode())
        stale = re.compile(rb"\x1f" + self.nonce.encode() + rb":\d{1,9}:\d{1,3}\x1f")
        read, most = bytearray(), MOST_OUTPUT_BYTES
        begun, cut, searched = self.offset, 0, 0
        async with asyncio.timeout(seconds):
            async for piece in self.terminal.output(begun):
                cut += piece.skipped
                read += piece.data
                found = pattern.search(read, max(0, searched - 8192))
                searched = len(read)
                if found is not None:
                    self.offset = piece.offset + len(piece.data) - (len(read) - found.end())
                    output = stale.sub(b"", bytes(read[: found.start()]))
                    return Found(_text(output, cut), found[0].decode(errors="replace"), None if found[1] is None else int(found[1]))
                if len(read) > 2 * most:
                    cut += len(read) - most
                    del read[most // 2 : len(read) - most // 2]
                    searched = len(read)
                if piece.ended is not None:
                    raise SwerexError(f"The shell of the session {self.name!r} has ended: {_text(bytes(read), cut)[-1000:]}")
        raise SwerexError(f"The shell of the session {self.name!r} cannot be reached.")


def _text(data: bytes, cut: int) -> str:
    """Return output as text; ``cut`` bytes in its middle are missing already."""
    half = MOST_OUTPUT_BYTES // 2
    if not cut and len(data) <= 2 * half:
        return _plain(data)
    cut += max(0, len(data) - 2 * half)
    return f"{_plain(data[:half])}\n[... {cut} bytes are left out here ...]\n{_plain(data[half:][-half:])}"


def _plain(data: bytes) -> str:
    return _CONTROL.sub("", data.decode(errors="backslashreplace")).replace("\r\n", "\n")


def _timeout(command: str, seconds: float | None) -> SwerexError:
    return SwerexError(f"timeout after {seconds} seconds while running command {command!r}", "CommandTimeoutError")


async def _has_bash(live: LiveSandbox) -> bool:
    argv = ["sh", "-c", "command -v bash"]
    answer = await (await live.ready()).execute("run", HostArguments(argv=argv, session=None, timeout_seconds=LINE_SECONDS))
    return answer.ok and answer.unwrap().exit_code == 0
