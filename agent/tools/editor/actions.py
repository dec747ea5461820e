"""The editor's actions: what a model is told of them, and which method of the kit each one calls."""

from __future__ import annotations

from typing import Any, Protocol

from agent.core.actions import Action

PATH = {
    "type": "string",
    "minLength": 1,
    "maxLength": 4096,
    "description": "Path, relative to the workspace or absolute.",
}
LINE = {"type": "integer", "minimum": 1, "description": "Line number, from 1."}
TEXT = {"type": "string", "minLength": 1, "maxLength": 4096, "description": "Text to search for, exactly as it appears."}
FOLDER = {**PATH, "description": "Folder to search; the workspace by default."}


class Editor(Protocol):
    """What the actions call. All answer with a sentence or raise SandboxError."""

    def open(self, path: str, line: int | None = None) -> str: ...
    def goto(self, line: int) -> str: ...
    def scroll(self, windows: int) -> str: ...
    def create(self, path: str) -> str: ...
    def edit(self, start: int, end: int, text: str) -> str: ...
    def search_dir(self, text: str, folder: str = ".") -> str: ...
    def search_file(self, text: str, path: str | None = None) -> str: ...
    def find_file(self, name: str, folder: str = ".") -> str: ...


def editor_actions(editor: Editor) -> tuple[Action, ...]:
    """The actions of one editor."""
    submit = Action("submit", _submit, SUBMIT, _schema({"summary": SUMMARY}), terminal=True)
    return (*_viewing(editor), *_changing(editor), *_searching(editor), submit)


def _viewing(editor: Editor) -> tuple[Action, ...]:
    return (
        Action(
            "open", editor.open, OPEN, _schema({"path": PATH, "line": {**LINE, "description": "Line to show."}}, "path")
        ),
        Action("goto", editor.goto, "Move the window to a line of the open file.", _schema({"line": LINE}, "line")),
        Action("scroll_up", lambda: editor.scroll(-1), "Move the window up, to the lines before it.", _schema({})),
        Action("scroll_down", lambda: editor.scroll(1), "Move the window down, to the lines after it.", _schema({})),
    )


def _changing(editor: Editor) -> tuple[Action, ...]:
    return (
        Action("create", editor.create, "Create an empty file and open it.", _schema({"path": PATH}, "path")),
        Action("edit", editor.edit, EDIT, _schema(EDITED, *EDITED), metadata={"risk": "low"}),
    )


def _searching(editor: Editor) -> tuple[Action, ...]:
    named = {"name": {**TEXT, "description": "Name, as in 'test_*.py'."}, "dir": FOLDER}
    return (
        Action(
            "search_dir",
            lambda pattern, dir=".": editor.search_dir(pattern, dir),  # noqa: A006 - the model's word for it
            "List the files in and below a folder that contain a text, each with its number of matching lines.",
            _schema({"pattern": TEXT, "dir": FOLDER}, "pattern"),
        ),
        Action(
            "search_file",
            lambda pattern, path=None: editor.search_file(pattern, path),
            "Show the lines of a file that contain a text; by default, of the open file.",
            _schema({"pattern": TEXT, "path": PATH}, "pattern"),
        ),
        Action(
            "find_file",
            lambda name, dir=".": editor.find_file(name, dir),  # noqa: A006 - the model's word for it
            "Find files by name in and below a folder; wildcards are allowed.",
            _schema(named, "name"),
        ),
    )


OPEN = (
    "Open a file: its lines are shown, with their numbers, in a window that stays in view. One file is open at a time."
)
EDIT = (
    "Replace the lines of the open file from start to end (inclusive) with a text of any number of lines. An empty text deletes "
    "the lines; end = start - 1 inserts the text before start. Indent the text as it must be in the file. If the edit would "
    "introduce new errors, nothing is changed and the errors are shown."
)
SUBMIT = "End the run with the files as they are now. Submit when you are sure, or cannot get any further."
SUMMARY = {"type": "string", "description": "What was done, and what is left."}
EDITED = {
    "start": {**LINE, "description": "First line to replace."},
    "end": {"type": "integer", "minimum": 0, "description": "Last line to replace."},
    "text": {"type": "string", "description": "The lines to put in their place."},
}


def _submit(summary: str = "") -> dict[str, Any]:
    return {"summary": summary}


def _schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
