"""The program that starts the guest's commands, for a guest on this host: made once per user, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.user_cache import is_only_ours, user_cache

SOURCE = Path(__file__).parents[1] / "guest" / "commands" / "launch" / "launcher.c"
COMPILERS = ("cc", "gcc", "clang")
_COMPILE_SECONDS = 60
_HINT = (
    "Install a C compiler with the C library's headers (Debian, Ubuntu: apt-get install gcc libc6-dev), then try again."
)
_ELF_MACHINE = slice(18, 20)


def find_launcher() -> Path:
    """Return the path of the program; makes it if it is not there yet: compiles it, or takes it from the engine's runtime image.

    Raises SandboxError (setup_failed) if neither is possible, or if the cache belongs to somebody else.
    """
    source = SOURCE.read_bytes()
    folder = _open_cache()
    path = folder / f"launcher-{hashlib.sha256(source).hexdigest()[:16]}"
    if not _is_ours(path):
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            made = Path(fresh, "launcher")
            problem = _compile(made)
            if problem and not _take_from_engine(made):
                raise SandboxError(
                    ErrorCode.setup_failed,
                    f"A LocalEnvironment starts commands with a small C program, which could not be made: {problem}",
                    _HINT,
                )
            made.chmod(0o700)
            made.replace(path)
    return path


def _open_cache() -> Path:
    folder = user_cache("launcher")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"The folder {folder} cannot be made: {error.strerror}.",
            "Set XDG_CACHE_HOME to a folder you may write.",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or not is_only_ours(found):
        raise SandboxError(
            ErrorCode.setup_failed,
            f"{folder} is not a folder that only this user can write to, so a program in it cannot be trusted.",
            "Remove it, or set XDG_CACHE_HOME to another folder.",
        )
    return folder


def _is_ours(path: Path) -> bool:
    """Return whether the program is there, and only this user can have written it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and is_only_ours(found)


def _compile(target: Path) -> str:
    """Compile the program to ``target``. Returns what prevented it, or ""."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return "no C compiler was found."
    try:
        done = subprocess.run(
            [compiler, "-O2", "-o", str(target), str(SOURCE)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_COMPILE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{compiler} failed: {error}."
    return "" if done.returncode == 0 else f"{compiler} failed: {done.stderr.strip()[-500:]}"


def _take_from_engine(target: Path) -> bool:
    """Copy the program out of the runtime image, if an engine has it. Returns whether it did."""
    from sandbox.docker.images.runtime import read_launcher

    program = read_launcher()
    if program is None or program[_ELF_MACHINE] != Path(sys.executable).read_bytes()[_ELF_MACHINE]:
        return False
    target.write_bytes(program)
    return True
