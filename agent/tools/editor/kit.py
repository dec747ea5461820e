"""The kit itself: the open file, the position of its window, and the actions on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.core.actions import Action
from agent.core.kits import Kit, KitContext
from agent.errors import AgentErrorCode
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from . import lint
from .actions import editor_actions
from .files import Loaded, is_there, load
from .lines import text_lines
from .searching import find_file, search_dir, search_file
from .window import Window


@dataclass(frozen=True, slots=True)
class Opened:
    """Which file is open, the first line of its window, and the digest of the text that the model was last shown."""

    path: str
    first: int
    seen: str


class EditorKit(Kit):
    """One file at a time in a window of ``window`` lines, of which ``overlap`` stay in view after scrolling.

    Every prompt shows the window with the current content. An edit is made only if the file is still as the model saw it.
    """

    name = "editor"

    def __init__(self, setting: KitContext, window: int = 100, overlap: int = 2) -> None:
        self._environment = setting.environment
        self._window = Window(window, overlap)
        self._open: Opened | None = None
        self._actions = editor_actions(self)

    def actions(self) -> Sequence[Action]:
        return self._actions

    def describe(self) -> Mapping[str, str]:
        """Return the window on the open file as it is now; the next edit applies to what is shown here."""
        if self._open is None:
            return {"open file": "No file is open."}
        try:
            file = load(self._environment, self._open.path)
        except SandboxError as error:
            return {"open file": f"[{self._open.path} cannot be shown: {error.message}]"}
        changed = file.digest != self._open.seen
        first = self._window.clamped(self._open.first, len(file.lines))
        self._open = Opened(file.path, first, file.digest)
        told = "[The file has changed since you last saw it. This is its current content.]\n" if changed else ""
        return {"open file": told + self._window.text(file.path, file.lines, first)}

    def snapshot(self) -> Any:
        """Return the open file and the position of its window."""
        return (
            None
            if self._open is None
            else {"path": self._open.path, "first": self._open.first, "seen": self._open.seen}
        )

    def restore(self, state: Any) -> None:
        if state is None:
            self._open = None
            return
        try:
            opened = Opened(str(state["path"]), int(state["first"]), str(state["seen"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"This is not an open file: {state!r:.200}") from error
        self._open = opened

    def open(self, path: str, line: int | None = None) -> str:
        """Open a file, with ``line`` in its window."""
        file = load(self._environment, path)
        total = len(file.lines)
        _within(file, line)
        first = 1 if line is None else self._window.around(line, total)
        return self._show(file, first, f"Opened {file.path}.")

    def goto(self, line: int) -> str:
        """Move the window to a line."""
        file = self._file()
        _within(file, line)
        return self._show(file, self._window.around(line, len(file.lines)), "")

    def scroll(self, windows: int) -> str:
        """Move the window up (-1) or down (1)."""
        file = self._file()
        total = len(file.lines)
        before = self._window.clamped(self._opened().first, total)
        first = self._window.moved(before, total, windows)
        end = "end" if windows > 0 else "beginning"
        return self._show(file, first, f"The window is at the {end} of {file.path} already." if first == before else "")

    def create(self, path: str) -> str:
        """Create an empty file and open it."""
        if is_there(self._environment, path):
            raise SandboxError(
                ErrorCode.path_exists,
                f"{path} already exists.",
                f"Open it with open(path={path!r}).",
                next_tool="open",
            )
        written = self._environment.write(path, "").unwrap()
        return self._show(load(self._environment, written.path), 1, f"Created {written.path}.")

    def edit(self, start: int, end: int, text: str) -> str:
        """Replace the lines ``start`` to ``end``, unless that introduces new errors."""
        file, seen = self._file(), self._opened().seen
        if file.digest != seen:
            raise SandboxError(
                ErrorCode.path_changed,
                f"{file.path} has changed since you last saw it, so its line numbers may refer to other lines now.",
                "Look at the window again, which shows its current content, and send an edit for that.",
                retryable=True,
            )
        self._editable(file, start, end)
        change = lint.Change(start, end, len(text_lines(text)))
        made = replace(file, text=file.lines.replaced(start, end, text).text)
        checks = lint.check(self._environment, file.path, [file.text, made.text])
        if checks is not None and (new := lint.new_findings(checks[0], checks[1], change)):
            raise self._refused(file, made, change, new)
        if made.text == file.text:
            return f"Lines {start}-{end} of {file.path} are the same as before: nothing was changed."
        self._environment.write(file.path, made.text).unwrap()
        total, opened = len(made.lines), self._opened()
        seen_there = self._window.shows(start, opened.first, total) and self._window.shows(
            min(start + change.lines, total), opened.first, total
        )
        first = opened.first if seen_there else self._window.around(start, total)
        last = start + change.lines - 1
        where = f"line {start} is" if change.lines == 1 else f"lines {start}-{last} are"
        said = f"{file.path}: {where} new." if change.lines else f"{file.path}: lines {start}-{end} were deleted."
        return self._show(made, first, f"{said} Look at the window: is it what you meant, and is the indentation right?")

    def search_dir(self, text: str, folder: str = ".") -> str:
        """Return how often a text occurs in the files of a folder."""
        return search_dir(self._environment, text, folder)

    def search_file(self, text: str, path: str | None = None) -> str:
        """Return the lines of a file, by default the open one, that contain a text."""
        return search_file(self._environment, text, self._opened().path if path is None else path)

    def find_file(self, name: str, folder: str = ".") -> str:
        """Return the files of that name."""
        return find_file(self._environment, name, folder)

    def _opened(self) -> Opened:
        if self._open is None:
            raise SandboxError(
                AgentErrorCode.no_open_file, "No file is open.", "Open one first, with open.", next_tool="open"
            )
        return self._open

    def _file(self) -> Loaded:
        return load(self._environment, self._opened().path)

    def _show(self, file: Loaded, first: int, said: str) -> str:
        """Move the window, which the next prompt shows. The position changes only here, after everything succeeded."""
        total = len(file.lines)
        self._open = Opened(file.path, first, file.digest)
        where = (
            f"The window shows lines {first}-{self._window.last(first, total)} of {total}." if total else "It is empty."
        )
        return f"{said} {where}".strip()

    def _editable(self, file: Loaded, start: int, end: int) -> None:
        """Raise SandboxError for lines that do not exist, and for files that cannot be written back unchanged."""
        total = len(file.lines)
        if start > end + 1 or end > total or start < 1 or (start > total + 1):
            if total == 0 and (start, end) == (1, 1):
                return
            raise SandboxError(
                ErrorCode.range_outside_file,
                f"There are no lines {start} to {end} in {file.path}, which has {total}.",
                f"Give lines between 1 and {total}, the first before the last; end = start - 1 inserts text before start."
                if total
                else "The file is empty: use 1:1.",
            )
        if not file.exact:
            raise SandboxError(
                ErrorCode.not_text,
                f"{file.path} has bytes that are not UTF-8, which an edit would destroy.",
                "Change it with a command, such as sed or python3.",
            )

    def _refused(self, file: Loaded, made: Loaded, change: lint.Change, new: Sequence[lint.Finding]) -> SandboxError:
        """Return the failure that shows the errors, the text with the edit, and the current text."""
        errors = "\n".join(f"line {found.line}: {found.message}" for found in new)
        around = Window(min(self._window.size, change.lines + 20), 0)
        would = around.text(made.path, made.lines, around.clamped(change.start - 10, len(made.lines)))
        is_now = around.text(file.path, file.lines, around.clamped(change.start - 10, len(file.lines)))
        return SandboxError(
            AgentErrorCode.lint_errors,
            f"The edit was not made: it would introduce {len(new)} new error{'' if len(new) == 1 else 's'} in {file.path}.",
            "Do not send the same edit again: look at the errors, and send one with other lines or another text.",
            result=f"New errors:\n{errors}\n\nWith the edit:\n{would}\n\nThe file now:\n{is_now}",
        )


def _within(file: Loaded, line: int | None) -> None:
    total = len(file.lines)
    if line is not None and not 1 <= line <= max(total, 1):
        raise SandboxError(
            ErrorCode.range_outside_file,
            f"There is no line {line} in {file.path}, which has {total}.",
            f"Give one between 1 and {max(total, 1)}.",
        )
