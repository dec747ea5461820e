"""Messages of the user during a run: they wait here until the next step adds them to the memory."""

from __future__ import annotations

import os
import queue
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.core.loop.layers import Layer
from agent.core.run import AgentRun, Step
from agent.memory import Memory
from agent.record.store.run_record import spoken

MOST_CHARS = 100_000
MOST_WAITING = 1000
# Of a message in a mailbox: its place, and what tells it from others.
_NAME = re.compile(r"[0-9]{8}-[0-9a-f]{16}")


class Inbox(Layer):
    """A layer that adds, at each step, the messages since the last one. ``say`` may be called from any thread.

    Among the ``layers`` of a recorded run, messages that wait when it is cut off are read when it is resumed.
    """

    state_name = "inbox"

    def __init__(self) -> None:
        self._waiting: queue.Queue[str] = queue.Queue(MOST_WAITING)

    def say(self, text: str) -> None:
        """Have the model read this before its next decision. Raises ValueError if the text is empty or has more than 100,000
        characters, and if 1,000 messages are waiting already.
        """
        check_said(text)
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            raise ValueError(f"{MOST_WAITING} messages are already waiting.") from None

    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Add the waiting messages, in the order in which they were sent."""
        while True:
            try:
                text = self._waiting.get_nowait()
            except queue.Empty:
                return
            memory.add_memory(spoken(text))

    def snapshot(self) -> Any:
        """Return the messages that wait, or None."""
        with self._waiting.mutex:
            return list(self._waiting.queue) or None

    def restore(self, state: Any) -> None:
        if state is None:
            return
        if not isinstance(state, list) or not all(isinstance(text, str) for text in state):
            raise ValueError("These are not messages.")
        for text in state:
            self.say(text)


class Mailbox(Layer):
    """A layer that adds the messages that other processes put into ``folder`` (``put``). A message is removed once it is
    recorded, and recognised by its id if the run was killed before that: none is lost, and none is read twice.

    ``tell`` is called for each message that was read, and for those that came too late.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder, self._tell = folder, tell
        self._read: list[Path] = []

    def before_step(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Add the waiting messages, in the order in which they were sent."""
        self._forget()
        known = {message.get("said") for message in memory.items}
        for path in waiting(self.folder):
            self._read.append(path)
            if path.name not in known:
                memory.add_memory(spoken(_text_of(path), path.name))
                self._tell("your message is read before this step")

    def after_decision(self, step: Step, memory: Memory) -> None:  # noqa: ARG002
        """Remove the messages that were read: they are recorded by now."""
        self._forget()

    def after_run(self, run: AgentRun) -> None:
        """Report the messages that nobody will read."""
        late = [path for path in waiting(self.folder) if path not in self._read]
        if late and not run.waits:
            self._tell(f"{len(late)} message(s) of yours came too late: the run had ended")

    def _forget(self) -> None:
        for path in self._read:
            path.unlink(missing_ok=True)
        self._read = []


def put(folder: Path, text: str) -> str:
    """Have the run whose mailbox is ``folder`` read this before its next decision. Returns the id of the message.

    Raises ValueError like ``Inbox.say``, and OSError if the folder cannot be written.
    """
    check_said(text)
    folder.mkdir(mode=0o700, exist_ok=True)
    names = [path.name for path in waiting(folder)]
    if len(names) >= MOST_WAITING:
        raise ValueError(f"{MOST_WAITING} messages are already waiting.")
    number = 1 + max((int(name.split("-")[0]) for name in names), default=0)
    name = f"{number:08d}-{secrets.token_hex(8)}"
    partial = folder / f".{name}"
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / name)
    return name


def waiting(folder: Path) -> list[Path]:
    """Return the messages in a mailbox, in the order in which they were sent. Folders, links and the like are not messages."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names)]


def check_said(text: str) -> None:
    """Raise ValueError for a text that cannot be a message."""
    if not text.strip():
        raise ValueError("The message is empty.")
    if len(text) > MOST_CHARS:
        raise ValueError(f"A message of {len(text)} characters is too long; the maximum is {MOST_CHARS}.")


def _text_of(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(4 * MOST_CHARS).decode("utf-8", "replace")[:MOST_CHARS]
