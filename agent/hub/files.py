"""Agents declared in files: one Markdown file with frontmatter, or a folder with agent.yaml and prompt.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from .agent_file import spec_of
from .frontmatter import AgentFileError, Section, Values, sections, split, values
from .hub import Problem
from .python_parts import trusted_folder
from .spec import AgentSpec

MAX_BYTES = 256 * 1024
MAX_ENTRIES = 1000
# A file may be written to bury what matters.
MAX_FAULTS = 20
DECLARATION, PROMPT = "agent.yaml", "prompt.md"


def scan(folder: Path, *, python: bool = True) -> Iterator[AgentSpec | Problem]:
    """Yield the agents in a folder, sorted by the names of their files (``*.md``) and folders (agent.yaml and prompt.md).

    README.md and names that begin with "_" or "." are skipped. For an entry that is not an agent, yields its Problems.
    With ``python`` agents may name Python files beside them; none is imported here.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield Problem(str(folder), f"the folder cannot be read: {error.strerror}")
        return
    if len(entries) > MAX_ENTRIES:
        yield Problem(str(folder), f"there are {len(entries)} entries, and only the first {MAX_ENTRIES} are read")
    for entry in entries[:MAX_ENTRIES]:
        if entry.name.startswith(("_", ".")) or entry.name == "README.md":
            continue
        if entry.suffix == ".md" or entry.is_dir():
            yield from read([entry], python=python)


def read(paths: Iterable[Path], *, trusted: bool = False, python: bool = False) -> Iterator[AgentSpec | Problem]:
    """Yield the agent in each of these files and folders, or a Problem for each of its faults, in the order of their lines."""
    for path in paths:
        made = _from_folder(path, python) if path.is_dir() else _from_markdown(path, trusted, python)
        if isinstance(made, AgentSpec):
            yield made
            continue
        yield from made[:MAX_FAULTS]
        if len(made) > MAX_FAULTS:
            yield Problem(str(path), f"there are {len(made) - MAX_FAULTS} more faults")


def located(source: str, *way: str | int) -> str:
    """Return where a key is in the file or folder ``source``, as PATH:LINE; ``source`` itself if that is unknown."""
    path = Path(source) / DECLARATION if Path(source).is_dir() else Path(source)
    try:
        text = _text(path)
        head, first = (text, 1) if path.name == DECLARATION else (split(text)[0], 2)
        line = values(head, first).line(*way)
    except AgentFileError:
        return source
    return source if line is None else f"{path}:{line}"


def _from_markdown(path: Path, trusted: bool, python: bool) -> AgentSpec | list[Problem]:
    try:
        head, body, line = split(_text(path))
    except AgentFileError as error:
        return _problems(error, path, path)
    source = "built in" if trusted else str(path)
    beside = trusted_folder(path.parent) if python else None
    make = partial(spec_of, source=source, trusted=trusted, python_folder=beside)
    return _made(path, lambda: values(head, 2), path, lambda: sections(body, line), make)


def _from_folder(folder: Path, python: bool) -> AgentSpec | list[Problem]:
    declaration, prompt = folder / DECLARATION, folder / PROMPT
    missing = [path for path in (declaration, prompt) if not path.is_file()]
    if missing:
        return [Problem(str(path), "it is missing, and an agent in a folder needs it") for path in missing]
    beside = trusted_folder(folder) if python else None
    make = partial(spec_of, source=str(folder), old=True, python_folder=beside)
    return _made(
        declaration, lambda: values(_text(declaration)), prompt, lambda: sections(_text(prompt)), make
    )


def _made(
    keys_path: Path,
    read_keys: Callable[[], Values],
    text_path: Path,
    read_text: Callable[[], list[Section]],
    make: Callable[[Values, list[Section]], AgentSpec],
) -> AgentSpec | list[Problem]:
    """Return the spec that the two halves make, or all of their faults, those of the keys first."""
    goals: list[Section] = []
    in_text: list[Problem] = []
    try:
        goals = read_text()
    except AgentFileError as error:
        in_text = _problems(error, text_path, text_path)
    try:
        spec = make(read_keys(), goals)
    except AgentFileError as error:
        return _problems(error, keys_path, text_path) + in_text
    return in_text or spec


def _problems(error: AgentFileError, keys_path: Path, text_path: Path) -> list[Problem]:
    found = []
    for each in (error, *error.others):
        path = text_path if each.in_text else keys_path
        found.append(Problem(str(path) if each.line is None else f"{path}:{each.line}", each.what))
    return found


def _text(path: Path) -> str:
    """Return the text of a file. Raises AgentFileError."""
    if not path.is_file():
        raise AgentFileError("it is not a file" if path.exists() else "it is missing")
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
        raise AgentFileError(f"it is not UTF-8: byte {data[error.start]:#04x}", line) from error
