"""Agents declared in files: one Markdown file with frontmatter, or a folder with agent.yaml and prompt.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.frontmatter import AgentFileError, sections, split, values

from .hub import Problem
from .reading import spec_of
from .spec import AgentSpec

MAX_BYTES = 256 * 1024
MAX_ENTRIES = 1000
DECLARATION, PROMPT = "agent.yaml", "prompt.md"


def scan(folder: Path) -> Iterator[AgentSpec | Problem]:
    """The agents in a folder, by the names of its entries: ``*.md`` files, and folders with agent.yaml and prompt.md.

    Names that begin with "_" or "." are left out, so is README.md. What is no agent is a Problem, and the others are loaded.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield Problem(str(folder), f"the folder cannot be read: {error.strerror}")
        return
    if len(entries) > MAX_ENTRIES:
        yield Problem(str(folder), f"there are {len(entries)} entries, and the first {MAX_ENTRIES} are looked at")
    for entry in entries[:MAX_ENTRIES]:
        if entry.name.startswith(("_", ".")) or entry.name == "README.md":
            continue
        if entry.suffix == ".md" or entry.is_dir():
            yield from read([entry])


def read(paths: Iterable[Path], *, trusted: bool = False) -> Iterator[AgentSpec | Problem]:
    """The agent of each of these files and folders, or a Problem."""
    for path in paths:
        try:
            yield _from_folder(path) if path.is_dir() else _from_markdown(path, trusted)
        except _LocatedError as error:
            yield Problem(error.where, error.what)


def located(source: str, *way: str | int) -> str:
    """Where in the file or folder ``source`` a key stands, as PATH:LINE; ``source`` itself where that cannot be told."""
    path = Path(source) / DECLARATION if Path(source).is_dir() else Path(source)
    try:
        text = _text(path)
        head, first = (text, 1) if path.name == DECLARATION else (split(text)[0], 2)
        line = values(head, first).line(*way)
    except AgentFileError:
        return source
    return source if line is None else f"{path}:{line}"


class _LocatedError(Exception):
    def __init__(self, path: Path, problem: AgentFileError) -> None:
        super().__init__(path, problem)
        self.where = str(path) if problem.line is None else f"{path}:{problem.line}"
        self.what = problem.what


def _from_markdown(path: Path, trusted: bool) -> AgentSpec:
    try:
        head, body, line = split(_text(path))
        return spec_of(values(head, 2), sections(body, line), "built in" if trusted else str(path), trusted=trusted)
    except AgentFileError as problem:
        raise _LocatedError(path, problem) from problem


def _from_folder(folder: Path) -> AgentSpec:
    declaration, prompt = folder / DECLARATION, folder / PROMPT
    for path in (declaration, prompt):
        if not path.is_file():
            raise _LocatedError(path, AgentFileError("it is missing, and an agent in a folder needs it"))
    at = declaration
    try:
        found, at = values(_text(declaration)), prompt
        goals, at = sections(_text(prompt)), declaration
        return spec_of(found, goals, str(folder), old=True)
    except AgentFileError as problem:
        raise _LocatedError(prompt if problem.in_text else at, problem) from problem


def _text(path: Path) -> str:
    """The text of a file. Raises AgentFileError."""
    if not path.is_file():
        raise AgentFileError("it is no file" if path.exists() else "it is missing")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise AgentFileError(f"it cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise AgentFileError(f"it is larger than {MAX_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise AgentFileError(f"it is no UTF-8: byte {data[error.start]:#04x}", line) from error
