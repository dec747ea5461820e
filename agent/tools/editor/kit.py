"""The kit itself: the open file, where its window stands, and the actions on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.actions import Action
from agent.errors import AgentErrorCode
from agent.kits import Kit
from agent.tools.placed import Place
from sandbox.errors import ErrorCode, SandboxError

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
    """A file at a time in a window of ``window`` lines, of which ``overlap`` are seen again after scrolling.

    The window is in every prompt, as the file is then. An edit is made on the file that the model was shown, or not at all.
    """

    name = "editor"

    def __init__(self, setting: Place, window: int = 100, overlap: int = 2) -> None:
        self._environment = setting.environment
        self._window = Window(window, overlap)
        self._open: Opened | None = None
        self._actions = editor_actions(self)

    def actions(self) -> Sequence[Action]:
        """See ``Kit``."""
        return self._actions

    def describe(self) -> Mapping[str, str]:
        """The window on the open file as it is now; what is shown here is what the next edit is made on."""
        if self._open is None:
            return {"open file": "No file is open."}
        try:
            file = load(self._environment, self._open.path)
        except SandboxError as error:
            return {"open file": f"[{self._open.path} cannot be shown: {error.message}]"}
        changed = file.digest != self._open.seen
        first = self._window.clamped(self._open.first, len(file.lines))
        self._open = Opened(file.path, first, file.digest)
        told = "[The file was changed since you saw it last. This is how it is now.]\n" if changed else ""
        return {"open file": told + self._window.text(file.path, file.lines, first)}

    def snapshot(self) -> Any:
        """The open file and where its window stands."""
        return (
            None
            if self._open is None
            else {"path": self._open.path, "first": self._open.first, "seen": self._open.seen}
        )

    def restore(self, state: Any) -> None:
        """See ``Kit``."""
        if state is None:
            self._open = None
            return
        try:
            opened = Opened(str(state["path"]), int(state["first"]), str(state["seen"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"This is no open file: {state!r:.200}") from error
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
        """Make an empty file and open it."""
        if is_there(self._environment, path):
            raise SandboxError(
                ErrorCode.path_exists,
                f"{path} is there already.",
                f"Open it with open(path={path!r}).",
                next_tool="open",
            )
        written = self._environment.write(path, "").unwrap()
        return self._show(load(self._environment, written.path), 1, f"Created {written.path}.")

    def edit(self, start: int, end: int, text: str) -> str:
        """Replace the lines ``start`` to ``end``, if that brings no new errors."""
        file, seen = self._file(), self._opened().seen
        if file.digest != seen:
            raise SandboxError(
                ErrorCode.path_changed,
                f"{file.path} was changed since you saw it, so its line numbers may mean other lines now.",
                "Look at the window again, which shows it as it is now, and send the edit for that.",
                retryable=True,
            )
        self._editable(file, start, end)
        change = lint.Change(start, end, len(text_lines(text)))
        made = replace(file, text=file.lines.replaced(start, end, text).text)
        checks = lint.check(self._environment, file.path, [file.text, made.text])
        if checks is not None and (new := lint.new_findings(checks[0], checks[1], change)):
            raise self._refused(file, made, change, new)
        if made.text == file.text:
            return f"The lines {start}-{end} of {file.path} are the same as before: nothing was changed."
        self._environment.write(file.path, made.text).unwrap()
        total, opened = len(made.lines), self._opened()
        seen_there = self._window.shows(start, opened.first, total) and self._window.shows(
            min(start + change.lines, total), opened.first, total
        )
        first = opened.first if seen_there else self._window.around(start, total)
        last = start + change.lines - 1
        where = f"line {start} is" if change.lines == 1 else f"lines {start}-{last} are"
        said = f"{file.path}: {where} new." if change.lines else f"{file.path}: the lines {start}-{end} are gone."
        return self._show(made, first, f"{said} Look at the window: is it what you meant, and indented rightly?")

    def search_dir(self, text: str, folder: str = ".") -> str:
        """How often a text stands in the files of a folder."""
        return search_dir(self._environment, text, folder)

    def search_file(self, text: str, path: str | None = None) -> str:
        """The lines of a file, by default the open one, in which a text stands."""
        return search_file(self._environment, text, self._opened().path if path is None else path)

    def find_file(self, name: str, folder: str = ".") -> str:
        """The files of that name."""
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
        """Have the window there, which the next prompt shows; the position changes only here, when all went well."""
        total = len(file.lines)
        self._open = Opened(file.path, first, file.digest)
        where = (
            f"The window shows lines {first}-{self._window.last(first, total)} of {total}." if total else "It is empty."
        )
        return f"{said} {where}".strip()

    def _editable(self, file: Loaded, start: int, end: int) -> None:
        """Raises SandboxError for lines that are not there, and for files that cannot be written back as they were."""
        total = len(file.lines)
        if start > end + 1 or end > total or start < 1 or (start > total + 1):
            if total == 0 and (start, end) == (1, 1):
                return
            raise SandboxError(
                ErrorCode.range_outside_file,
                f"There are no lines {start} to {end} in {file.path}, which has {total}.",
                f"Give lines between 1 and {total}, the first before the last; end = start - 1 puts text in before start."
                if total
                else "The file is empty: use 1:1.",
            )
        if not file.exact:
            raise SandboxError(
                ErrorCode.not_text,
                f"{file.path} has bytes that are no UTF-8, which an edit would destroy.",
                "Change it with a command, such as sed or python3.",
            )

    def _refused(self, file: Loaded, made: Loaded, change: lint.Change, new: Sequence[lint.Finding]) -> SandboxError:
        """The failure that shows the errors, the text as it would be, and the text as it is."""
        errors = "\n".join(f"line {found.line}: {found.message}" for found in new)
        around = Window(min(self._window.size, change.lines + 20), 0)
        would = around.text(made.path, made.lines, around.clamped(change.start - 10, len(made.lines)))
        is_now = around.text(file.path, file.lines, around.clamped(change.start - 10, len(file.lines)))
        return SandboxError(
            AgentErrorCode.lint_errors,
            f"The edit was not made: it would bring {len(new)} new error{'' if len(new) == 1 else 's'} into {file.path}.",
            "Do not send the same edit again: look at the errors, and send one with other lines or another text.",
            result=f"New errors:\n{errors}\n\nAs it would be:\n{would}\n\nAs it is:\n{is_now}",
        )


def _within(file: Loaded, line: int | None) -> None:
    total = len(file.lines)
    if line is not None and not 1 <= line <= max(total, 1):
        raise SandboxError(
            ErrorCode.range_outside_file,
            f"There is no line {line} in {file.path}, which has {total}.",
            f"Give one between 1 and {max(total, 1)}.",
        )
