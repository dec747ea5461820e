"""Python tools, languages and memories that an agent file names as ``module:name``: found beside the file, imported to build it.

Nothing here is imported to list, show or check agents; ``check`` reads the source and does not run it.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sandbox.errors import configuration_error

from .spec import AgentSpec

if TYPE_CHECKING:  # listing agents must be fast
    from agent.core.actions import Action

MAX_SOURCE_BYTES = 1024 * 1024
# A folder that a repository may bring along.
REPOSITORY_FOLDER = ".gamebox"
_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
# The modules that the Python parts of a folder imported from it, by folder and name.
_NEIGHBOURS: dict[Path, dict[str, ModuleType]] = {}
_DEFAULTS = AgentSpec(name="defaults", description="")


class PythonPartError(ValueError):
    """A reference that leads to nothing, or to what must not be imported."""


def is_reference(name: str) -> bool:
    """Return whether ``name`` is written as ``module:name``. No name of the catalogue is."""
    return ":" in name


def trusted_folder(folder: Path) -> Path | None:
    """Return ``folder`` if Python may be imported from it, and None for one below ``.gamebox``, which a repository may bring."""
    resolved = folder.resolve()
    return None if REPOSITORY_FOLDER in resolved.parts else resolved


def without_python(spec: AgentSpec) -> AgentSpec:
    """Return ``spec`` without the Python parts that it names; language and memory become the usual ones."""
    language, memory = is_reference(spec.language), any(map(is_reference, _memories(spec)))
    return replace(
        spec,
        actions=tuple(name for name in spec.actions if not is_reference(name)),
        language=_DEFAULTS.language if language else spec.language,
        language_options={} if language else spec.language_options,
        memory=_DEFAULTS.memory if memory else spec.memory,
        memory_options={} if memory else spec.memory_options,
    )


def _memories(spec: AgentSpec) -> Iterator[str]:
    """Yield the names of the memory of ``spec`` and of those below it."""
    yield spec.memory
    options: Any = spec.memory_options
    while isinstance(options := options.get("over"), Mapping):
        yield str(options.get("memory", ""))


def python_files(spec: AgentSpec) -> dict[str, Path]:
    """Return the Python files that an agent may use, by their paths in its folder: none if it names none of them.

    These are the modules beside the agent file, and all of the packages that it names.
    """
    named = {name.partition(":")[0] for name in (*spec.actions, spec.language, *_memories(spec)) if is_reference(name)}
    folder = spec.python_folder
    if folder is None or not named:
        return {}
    packages = {folder / module.partition(".")[0] for module in named}
    files = [*folder.glob("*.py"), *(file for package in packages for file in package.rglob("*.py"))]
    return {path.relative_to(folder).as_posix(): path for path in sorted(files)}


def check(reference: str, folder: Path | None) -> None:
    """Raise PythonPartError, in words, unless a file in ``folder`` defines ``reference``. Does not import it."""
    file, name = _file_and_name(reference, folder)
    try:
        source = file.read_bytes()
        if len(source) > MAX_SOURCE_BYTES:
            raise PythonPartError(f"{file.name} is larger than {MAX_SOURCE_BYTES >> 20} MiB")
        tree = ast.parse(source)
    except OSError as error:
        raise PythonPartError(f"{file.name} cannot be read: {error.strerror}") from error
    except SyntaxError as error:
        raise PythonPartError(f"{file.name}:{error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, PythonPartError):
            raise
        raise PythonPartError(f"{file.name} is not Python: {error}"[:200]) from error
    names = set(_defined(tree.body))
    if name not in names and "*" not in names:
        near = difflib.get_close_matches(name, sorted(names), n=1)
        raise PythonPartError(f"{file.name} has no {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def load(reference: str, spec: AgentSpec) -> Any:
    """Import what ``reference`` of ``spec`` names. Raises SandboxError ``invalid_configuration``."""
    try:
        check(reference, spec.python_folder)
        file, name = _file_and_name(reference, spec.python_folder)
    except PythonPartError as problem:
        hint = "Correct the name in the agent's file, or the Python file beside it."
        raise configuration_error(f"The agent {spec.name!r}: {problem}.", hint) from problem
    try:
        return getattr(_module(file, spec.python_folder or file.parent), name)
    except (Exception, SystemExit) as error:
        raise configuration_error(
            f"{file.name}, which the agent {spec.name!r} names, cannot be imported: {type(error).__name__}: {error}"[
                :500
            ]
            + ".",
            f"Run it to see the whole error: python {file}",
        ) from error


def action(reference: str, spec: AgentSpec) -> Action:
    """Import the tool ``reference`` as an action. Raises SandboxError ``invalid_configuration``."""
    from agent.core.registry import as_action

    found = load(reference, spec)
    try:
        return as_action(found)
    except TypeError as error:
        raise configuration_error(
            f"The agent {spec.name!r} cannot use {reference} as a tool: {error}",
            "Name a function with annotated arguments, or an action made with @action.",
        ) from error


def _file_and_name(reference: str, folder: Path | None) -> tuple[Path, str]:
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise PythonPartError(f"{reference[:80]!r} is not written as module:name, as in tools:count_words")
    if folder is None:
        raise PythonPartError(
            f"{reference[:80]!r} names Python, which is imported only for agents in your own folder, in GAMEBOX_AGENTS "
            f"or in a folder named with --agents, and never from {REPOSITORY_FOLDER} of a repository"
        )
    stem = folder.joinpath(*match[1].split("."))
    file = next((each for each in (stem.with_suffix(".py"), stem / "__init__.py") if each.is_file()), None)
    if file is None:
        raise PythonPartError(f"there is no file {stem.relative_to(folder)}.py beside it")
    if not file.resolve().is_relative_to(folder):
        raise PythonPartError(f"{file.relative_to(folder)} is a link that leads out of {folder}")
    return file, match[2]


def _defined(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module defines at its top level; "*" if it imports all names of another."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        else:
            yield from (
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            )
            yield from _defined(each for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node)


def _module(file: Path, folder: Path) -> ModuleType:
    """Import ``file`` once, under a name of its own: two agents may each have a ``tools.py``. It can import its neighbours."""
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:12]
    name = f"gamebox_part_{digest}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importing_from(folder):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let modules in ``folder`` be imported by their names. Afterwards another folder may have modules of the same names."""
    neighbours = _NEIGHBOURS.setdefault(folder, {})
    before = dict(sys.modules)
    sys.modules.update(neighbours)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if before.get(name) is not module and Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
                neighbours[name] = module
                del sys.modules[name]
                if name in before:
                    sys.modules[name] = before[name]
