"""The case of the demo: which library, which bug, how to see it, and where the source comes from.

The library arrives as its wheel, which holds the sources and their test suite. A wheel is only unpacked; an sdist
would make pip run the library's own ``setup.py`` on the host before it hands over the file.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

DOWNLOAD_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Case:
    """One library at one version with one known bug.

    ``task`` is what a user would tell an agent: symptoms only. ``reproduce_command`` exits 0 when the bug is gone and 1
    while it is there; ``test_command`` runs the library's own tests, without network and without further packages. Both
    are shell text for the workspace root, and leave no byte code behind (``-B``).
    """

    name: str
    version: str
    fixed_in: str
    wheel: str
    wheel_sha256: str
    licence: str
    title: str
    citations: tuple[str, ...]
    task: str
    reproduce_command: str
    test_command: str


CASE = Case(
    name="aniso8601",
    version="9.0.0",
    fixed_in="9.0.1",
    wheel="aniso8601-9.0.0-py2.py3-none-any.whl",
    wheel_sha256="36b8db7035ae3e1308e56550d586f6c7c58cbc6f33357e76dd8dd3c138fbaa3b",
    licence="BSD-3-Clause",
    title="aniso8601 9.0.0 refuses the durations PT1H30S and P1Y15D, which are valid ISO 8601",
    citations=(
        # The changelog's entry for 9.0.1 ("... only hour and second time components (see PR 14)", "... only year and
        # day components"), and a Linux distribution's package that quotes it.
        "https://bitbucket.org/nielsenb/aniso8601/src/v9.0.1/CHANGELOG.rst",
        "https://build.opensuse.org/package/show/openSUSE:Factory:ARM/python-aniso8601?rev=10",
    ),
    task=(
        'aniso8601.parse_duration("PT1H30S") raises ISOFormatError: "PT1H30S" is not a valid ISO 8601 duration. '
        "One hour and thirty seconds is a valid duration, and aniso8601 8.0.0 parsed it. "
        '"P1Y15D" fails in the same way, while "PT1H2M30S" and "PT30S" are fine. '
        "Please find the cause and fix it, add a regression test to the library's own tests, and make sure that all of "
        "them pass (python3 -m unittest, no other packages are needed)."
    ),
    reproduce_command="""python3 -B - <<'EOF'
from aniso8601 import parse_duration
wrong = 0
for text, seconds in (("PT1H30S", 3630), ("P1Y15D", 380 * 86400), ("P1Y15DT1H0.5S", 380 * 86400 + 3600.5)):
    try:
        got = parse_duration(text).total_seconds()
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
    wrong += got != seconds
    print("ok   " if got == seconds else "WRONG", text, "->", got)
raise SystemExit(1 if wrong else 0)
EOF
""",
    test_command="python3 -B -m unittest discover --start-directory aniso8601 --top-level-directory .",
)


def fetch_source(target: Path, report: Callable[[str], None], case: Case = CASE) -> Path:
    """Unpack the library's source into ``target/NAME-VERSION`` and return that folder.

    The wheel is fetched by pip with the user's own pip settings, pinned by hash, and kept in the user's cache, so a
    second call needs no network. ``report`` gets one line per step. Nothing of the library is run.

    Raises SandboxError ``setup_failed``: no network, other bytes than the pinned ones, or no space. Raises it with
    ``path_exists`` when the folder is already there.
    """
    folder = target / f"{case.name}-{case.version}"
    if folder.exists():
        raise SandboxError(
            ErrorCode.path_exists, f"{folder} is already there.", "Give a new, empty folder as the target."
        )
    wheel = cached_wheel(case)
    try:
        if _sha256(wheel) != case.wheel_sha256:
            report(f"fetching {case.name} {case.version} from the package index")
            _download(case, wheel)
        report(f"unpacking {case.wheel}")
        folder.mkdir(parents=True)
        with zipfile.ZipFile(wheel) as archive:  # the pinned bytes; extractall also drops absolute paths and ".."
            archive.extractall(folder)
    except OSError as error:
        raise SandboxError(
            ErrorCode.setup_failed,
            f"the source of {case.name} could not be put into {folder}: {error}.",
            f"Check that {target} and {wheel.parent} can be written and have space.",
        ) from error
    return folder


def cached_wheel(case: Case = CASE) -> Path:
    """Return where the case's wheel is cached: below XDG_CACHE_HOME, or ~/.cache if that is not set."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gamebox" / "demo" / case.wheel


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _download(case: Case, wheel: Path) -> None:
    wheel.parent.mkdir(parents=True, exist_ok=True)
    # A folder beside the final place: a broken download never looks like a good one, and the rename is atomic.
    with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"{case.name}=={case.version} --hash=sha256:{case.wheel_sha256}\n")
        _pip_download(case, wanted, Path(scratch))
        fetched = Path(scratch) / case.wheel
        if (found := _sha256(fetched)) != case.wheel_sha256:
            raise _refused(case, f"pip left {'no such file' if found is None else 'a file with SHA-256 ' + found}")
        fetched.replace(wheel)


def _pip_download(case: Case, wanted: Path, folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--retries",
        "2",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--requirement",
        str(wanted),
        "--dest",
        str(folder),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=DOWNLOAD_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise _refused(case, f"pip had no answer within {DOWNLOAD_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise _refused(case, _reason(done.stderr) or f"pip ended with exit status {done.returncode}")


def _reason(stderr: str) -> str:
    """Return the first error of pip, in our words if pip's span many lines or name a wrong cause (no network)."""
    if "DO NOT MATCH THE HASHES" in stderr:
        return "the package index served other bytes than the pinned ones"
    if "Retrying (" in stderr:
        return "the package index could not be reached"
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR:") or "No module named pip" in line]
    return lines[0].removeprefix("ERROR:").strip() if lines else ""


def _refused(case: Case, reason: str) -> SandboxError:
    return SandboxError(
        ErrorCode.setup_failed,
        f"{case.name} {case.version} could not be fetched: {reason.rstrip('.')}.",
        f"Check the network and pip's index settings, or put the file with SHA-256 {case.wheel_sha256} at "
        f"{cached_wheel(case)}.",
        retryable=True,
    )
