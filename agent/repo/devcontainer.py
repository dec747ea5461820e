"""The devcontainer.json of a repository, which a stranger has written, as far as a sandbox can follow it."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.text.invisible import visible

from .beneath import Folder, leads_into_git

MOST_BYTES, MOST_DEPTH, MOST_VARIABLES, MOST_VALUE = 256 << 10, 32, 64, 8 << 10
_MOST_SHOWN, _MOST_FOLDERS, _MOST_LISTED = 12, 100, 8
MAIN = ".devcontainer/devcontainer.json"
_IMAGE = re.compile(
    r"[a-z0-9][a-z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
_OPENING, _CLOSING = frozenset("[{"), frozenset("]}")
_ALONE = frozenset('[]{},:"/')
# Images of builds and snapshots have owners, and are not named by a repository.
_OWNED = ("gamebox-build", "gamebox.invalid", "sha256")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
_SILENT = frozenset({"name", "$schema", "customizations"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Devcontainer:
    """What a devcontainer.json at ``path`` asks for. Paths are relative to the repository and lead to nothing outside of it.

    Either ``image`` or ``dockerfile`` is set, or neither. ``variables`` are for every command; ``command`` is what
    it would run after the start, a suggestion for ``--setup``. ``ignored`` says what has no effect, in words.
    """

    path: str
    image: str = ""
    dockerfile: str = ""
    context: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    ignored: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Return what it uses in words: an image, or a Dockerfile."""
        return f"the image {self.image}" if self.image else f"the Dockerfile {visible(self.dockerfile, one_line=True)}"


def find_devcontainers(repo: Path) -> tuple[str, ...]:
    """Return the path of the file to use; all candidates if only folders below .devcontainer have one, () if there is none.

    Links and pipes do not count. Raises OSError.
    """
    with Folder(repo) as held:
        for path in (MAIN, ".devcontainer.json"):
            if _is_file(held, path):
                return (path,)
        below = [name for name in sorted(held.names(".devcontainer")) if name.isprintable()][:_MOST_FOLDERS]
        found = (f".devcontainer/{name}/devcontainer.json" for name in below)
        return tuple(path for path in found if _is_file(held, path))


def listed(paths: Sequence[str]) -> str:
    """Return paths of devcontainer.json files in words, the first ones if they are many."""
    shown = [visible(path, one_line=True) for path in paths[:_MOST_LISTED]]
    more = len(paths) - len(shown)
    last = f"{more} more" if more else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last


def read_devcontainer(repo: Path) -> Devcontainer | None:
    """Return what the devcontainer.json of ``repo`` asks for; None if it has none.

    Raises SandboxError ``workspace_invalid`` if there are several, or if the file cannot be followed; the message says why.
    """
    try:
        paths = find_devcontainers(repo)
        if not paths:
            return None
        if len(paths) > 1:
            raise SandboxError(
                ErrorCode.workspace_invalid,
                f"The repository has {len(paths)} files for --devcontainer: {listed(paths)}.",
                f"Copy the one to use to {MAIN} and adjust its relative paths, or use --image IMAGE instead of --devcontainer.",
            )
        path = paths[0]
        with Folder(repo) as held:
            data = held.read(path, MOST_BYTES)
            if data is None:
                raise _refused(path, f"it has more than {MOST_BYTES >> 10} KiB, or cannot be read")
            return _Reading(held, path, _object(path, data)).result()
    except OSError as error:
        raise _refused(".devcontainer", f"it cannot be read: {error.strerror}") from error


def parse_jsonc(text: str) -> Any:
    """Return the value of JSON with comments and trailing commas, in one pass. Raises ValueError."""
    kept: list[str] = []
    depth = 0
    for token in _tokens(text):
        if token in _OPENING:
            depth += 1
            if depth > MOST_DEPTH:
                raise ValueError(f"it is more than {MOST_DEPTH} levels deep")
        elif token in _CLOSING:
            depth -= 1
            if kept and kept[-1] == ",":
                kept.pop()
        kept.append(token)
    return json.loads("".join(kept), parse_constant=_no_constant)


def _tokens(text: str) -> Iterator[str]:
    """Yield strings, and pieces between them with the characters that matter alone, without comments and white space."""
    at = 0
    while at < len(text):
        char, more = text[at], text[at + 1 : at + 2]
        if char == '"':
            end = _end_of_string(text, at)
        elif char == "/" and more in ("/", "*"):
            at = _end_of_comment(text, at)
            continue
        else:
            end = at + 1
            while end < len(text) and char not in _ALONE and text[end] not in _ALONE:
                end += 1
        piece = text[at:end]
        if piece.strip():
            yield piece.strip()
        at = end


def _end_of_string(text: str, at: int) -> int:
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    return end + 1


def _end_of_comment(text: str, at: int) -> int:
    if text[at + 1] == "/":
        end = text.find("\n", at)
        return len(text) if end < 0 else end
    end = text.find("*/", at + 2)
    if end < 0:
        raise ValueError("a comment has no end")
    return end + 2


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        found = parse_jsonc(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise _refused(path, "it is not an object")
    return found


class _Reading:
    """Reads the keys of one file. Raises SandboxError ``workspace_invalid``."""

    def __init__(self, held: Folder, path: str, found: dict[str, Any]) -> None:
        self._held, self._path, self._found = held, path, found
        self._ignored: list[str] = []

    def result(self) -> Devcontainer:
        image = self._image()
        dockerfile, context, arguments = ("", "", {}) if image else self._build()
        variables = {**self._variables("containerEnv"), **self._variables("remoteEnv")}
        command = self._command()
        self._places()
        rest = [name for name in self._found if name not in _SILENT]
        self._ignored += [visible(name[:60], one_line=True) for name in rest[:_MOST_SHOWN]]
        if len(rest) > _MOST_SHOWN:
            self._ignored.append(f"{len(rest) - _MOST_SHOWN} more")
        return Devcontainer(
            path=self._path,
            image=image,
            dockerfile=dockerfile,
            context=context,
            arguments=arguments,
            variables=variables,
            command=command,
            ignored=tuple(self._ignored),
        )

    def _text(self, owner: dict[str, Any], name: str, where: str = "") -> str:
        value = owner.pop(name, "")
        if not isinstance(value, str) or len(value) > MOST_VALUE or "\0" in value:
            raise _refused(self._path, f"{where}{name} is not a text of at most {MOST_VALUE} characters")
        return value

    def _image(self) -> str:
        image = self._text(self._found, "image")
        if image and (not _IMAGE.fullmatch(image) or re.split("[/:]", image)[0] in _OWNED):
            raise _refused(self._path, f"{image[:100]!r} cannot be the name of an image")
        return image

    def _build(self) -> tuple[str, str, dict[str, str]]:
        build = self._found.pop("build", {})
        if not isinstance(build, dict):
            raise _refused(self._path, "build is not an object")
        named = self._text(build, "dockerfile", "build.") or self._text(self._found, "dockerFile")
        context = self._text(build, "context", "build.") or self._text(self._found, "context") or "."
        arguments = build.pop("args", {})
        if not isinstance(arguments, dict) or len(arguments) > MOST_VARIABLES:
            raise _refused(self._path, f"build.args is not an object of at most {MOST_VARIABLES} values")
        kept = {}
        for name in list(arguments):
            value = self._text(arguments, name, "build.args.")
            if "${" in value or not _VARIABLE.fullmatch(name):
                self._ignored.append(f"build.args.{visible(name[:60], one_line=True)}")
            else:
                kept[name] = value
        self._ignored += [f"build.{visible(name[:60], one_line=True)}" for name in list(build)[:_MOST_SHOWN]]
        if not named:
            return "", "", {}
        file, folder = self._inside(named), self._inside(context)
        if not _is_file(self._held, file):
            raise _refused(self._path, f"there is no Dockerfile {file[:100]!r} in the repository, or a link leads to it")
        ignore = f"{folder}/.dockerignore" if folder else ".dockerignore"
        there, rules = self._held.status(folder) if folder else None, self._held.status(ignore)
        if folder and (there is None or not stat.S_ISDIR(there.st_mode)):
            raise _refused(self._path, f"there is no folder {folder[:100]!r} in the repository, or a link leads to it")
        if rules is not None and not stat.S_ISREG(rules.st_mode):
            raise _refused(self._path, f"{ignore[:100]!r} is not a file")
        return file, folder, kept

    def _inside(self, path: str) -> str:
        """Return a path relative to the file as one relative to the repository; "" for its root."""
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(self._path), path))
        if posixpath.isabs(path) or whole == ".." or whole.startswith("../") or leads_into_git(whole) or "${" in path:
            raise _refused(self._path, f"{path[:100]!r} leads out of the repository, or into .git")
        return "" if whole == "." else whole

    def _variables(self, name: str) -> dict[str, str]:
        found = self._found.pop(name, {})
        if not isinstance(found, dict) or len(found) > MOST_VARIABLES:
            raise _refused(self._path, f"{name} is not an object of at most {MOST_VARIABLES} values")
        kept = {}
        for key, value in found.items():
            # ${localEnv:NAME} would read this host's variables.
            fits = isinstance(value, str) and len(value) <= MOST_VALUE and "${" not in value and "\0" not in value
            if fits and _VARIABLE.fullmatch(key) and not key.lower().startswith("gamebox"):
                kept[key] = value
            else:
                self._ignored.append(f"{name}.{visible(key[:60], one_line=True)}")
        return kept

    def _command(self) -> str:
        parts = [words for name in _COMMANDS if (words := _as_command(self._found.pop(name, None)))]
        return " && ".join(parts)[:2000]

    def _places(self) -> None:
        workspace = self._found.pop("workspaceFolder", "/workspace")
        if workspace != "/workspace":
            self._ignored.append("workspaceFolder (the repository is in /workspace)")
        users = [self._found.pop(name, None) for name in ("remoteUser", "containerUser")]
        if any(users):
            self._ignored.append("remoteUser and containerUser (the profile of the sandbox decides)")


def _as_command(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    if isinstance(value, dict):
        return " && ".join(words for each in value.values() if not isinstance(each, dict) and (words := _as_command(each)))
    return ""


def _is_file(held: Folder, path: str) -> bool:
    status = held.status(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def _refused(path: str, problem: str) -> SandboxError:
    return SandboxError(
        ErrorCode.workspace_invalid,
        f"{visible(path, one_line=True)} of the repository cannot be followed: {problem}.",
        "Correct it, or leave out --devcontainer and name an image with --image.",
    )
