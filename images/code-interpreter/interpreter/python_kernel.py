"""A Python kernel: ipykernel in a process of its own, reached over Jupyter's messages on sockets in a private folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from errors import KernelDiedError
from jupyter_client.connect import write_connection_file
from jupyter_client.session import Session
from outputs import Outputs

PROGRAM = Path(__file__).with_name("kernel_app.py")
START_SECONDS = 60.0


class PythonKernel:
    """One kernel. ``start`` before anything else."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._process: asyncio.subprocess.Process | None = None
        self._folder = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._session = Session(key=os.urandom(32).hex().encode())
        self._outputs: Outputs | None = None
        self._request = ""
        self._idle, self._replied = asyncio.Event(), asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, and return when it answers. Raises KernelDiedError, OSError."""
        self._folder = tempfile.mkdtemp(prefix="gamebox-kernel-")
        path, info = write_connection_file(
            f"{self._folder}/c.json", transport="ipc", ip=f"{self._folder}/s", key=self._session.key
        )
        # The kernel ends with this process, whatever ends it.
        env = {**os.environ, "JPY_PARENT_PID": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAM), "-f", path),
            cwd=self._cwd,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        context = zmq.asyncio.Context.instance()
        self._shell, self._iopub = context.socket(zmq.DEALER), context.socket(zmq.SUB)
        # The default of 1000 messages would lose what a busy kernel prints, silently.
        self._iopub.rcvhwm = self._shell.rcvhwm = 0
        self._shell.linger = self._iopub.linger = 0
        self._shell.connect(f"ipc://{info['ip']}-{info['shell_port']}")
        self._iopub.connect(f"ipc://{info['ip']}-{info['iopub_port']}")
        self._iopub.subscribe(b"")
        self._tasks = [asyncio.create_task(self._read(self._shell)), asyncio.create_task(self._read(self._iopub))]
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._until_it_answers()
        except TimeoutError:
            raise KernelDiedError(f"The kernel did not answer within {START_SECONDS:.0f} s of its start.") from None

    async def _until_it_answers(self) -> None:
        """Ask until both sockets work: what a kernel publishes before it knows its subscriber is lost."""
        while True:
            await self._ask("kernel_info_request", {}, {})
            try:
                async with asyncio.timeout(0.5):
                    await self._done()
                return
            except TimeoutError:
                continue

    async def run(self, code: str, env: dict[str, str], outputs: Outputs) -> None:
        """Run code to its end, with these variables in its environment meanwhile. Raises KernelDiedError."""
        self._outputs = outputs
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        try:
            await self._ask("execute_request", content, {"environment": env})
            await self._done()
        finally:
            self._outputs = None

    async def _ask(self, kind: str, content: dict[str, Any], metadata: dict[str, Any]) -> None:
        message = self._session.msg(kind, content, metadata=metadata)
        self._request = message["header"]["msg_id"]
        self._idle.clear()
        self._replied.clear()
        await self._shell.send_multipart(self._session.serialize(message))

    async def _done(self) -> None:
        """Wait for the answer and the last output of the request. Raises KernelDiedError."""
        assert self._process is not None
        both = asyncio.gather(self._idle.wait(), self._replied.wait())
        died = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait([both, died], return_when=asyncio.FIRST_COMPLETED)
            if not both.done():
                await asyncio.sleep(0.05)  # its last words may be on their way
                raise KernelDiedError(f"The Python process ended {_how(died.result())}.")
        finally:
            both.cancel()
            died.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await both

    async def _read(self, socket: Any) -> None:
        while True:
            frames = await socket.recv_multipart()
            try:
                _, rest = self._session.feed_identities(frames)
                message = self._session.deserialize(rest)
                if message["parent_header"].get("msg_id") == self._request:
                    self._take(message["msg_type"], message["content"], str(message["header"]["date"]))
            except Exception as error:  # noqa: BLE001  # what runs in the kernel can send anything: it loses its own output
                print(f"a message of a kernel was left out: {error!r:.300}", file=sys.stderr)

    def _take(self, kind: str, content: dict[str, Any], date: str) -> None:
        outputs = self._outputs
        if kind == "status" and content["execution_state"] == "idle":
            self._idle.set()
        elif kind in ("execute_reply", "kernel_info_reply"):
            if outputs is not None and content.get("status") in ("error", "abort", "aborted"):
                _add_error(outputs, content)
            self._replied.set()
        elif outputs is None:
            return
        elif kind == "stream" and content["name"] in ("stdout", "stderr"):
            outputs.stream(content["name"], content["text"], date)
        elif kind in ("display_data", "execute_result"):
            outputs.result(dict(content["data"]), is_main=kind == "execute_result")
        elif kind == "error":
            _add_error(outputs, content)
        elif kind == "gamebox_left_out":
            outputs.leave_out(int(content["bytes"]))
        elif kind == "execute_input":
            outputs.count(int(content["execution_count"]))

    def interrupt(self) -> None:
        """Interrupt what runs, with the programs that it has started."""
        self._signal(signal.SIGINT)

    async def stop(self) -> None:
        """End it, with what it has started and not detached."""
        for task in self._tasks:
            task.cancel()
        if self._process is not None:
            self._signal(signal.SIGKILL)
            await self._process.wait()
            self._shell.close()
            self._iopub.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _add_error(outputs: Outputs, content: dict[str, Any]) -> None:
    name = content.get("ename") or "ExecutionAborted"
    outputs.error(str(name), str(content.get("evalue", "")), "\n".join(map(str, content.get("traceback", ()))))


def _how(status: int) -> str:
    return f"with signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
