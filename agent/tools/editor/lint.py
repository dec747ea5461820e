"""Check a file before an edit is made: in the sandbox, with the programs of its image. Only new errors count."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from sandbox.environment.base import Environment
from sandbox.frozen import dataclass

SECONDS = 20.0
MAX_FINDINGS = 50
MAX_MESSAGE_CHARS = 300
_LINE_IN_MESSAGE = re.compile(r"\bline \d+")
_OF_BASH = re.compile(r"^[^\n]*?line (\d+): ([^\n]*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Finding:
    """An error at a line."""

    line: int
    message: str


@dataclass(frozen=True, slots=True)
class Check:
    """The errors in a text. If it was not ``parsed``, one error hides all that follow."""

    findings: tuple[Finding, ...] = ()
    parsed: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """Which lines an edit replaces, and by how many; ``end`` is ``start`` - 1 if it only adds lines."""

    start: int
    end: int
    lines: int

    @property
    def delta(self) -> int:
        """Return by how many lines the text after the edit moves."""
        return self.lines - (self.end - self.start + 1)

    def moved(self, line: int) -> int | None:
        """Return the number of that line after the edit; None if it is replaced."""
        if line < self.start:
            return line
        return line + self.delta if line > self.end else None

    def made(self, line: int) -> bool:
        """Return whether the edit added this line of the new text, or deleted what was before it."""
        return self.start <= line <= max(self.start + self.lines - 1, self.start)


def new_findings(before: Check, after: Check, change: Change) -> list[Finding]:
    """Return the errors that the edit introduces. An error that was there before does not count, wherever the edit moved it.

    If the old text could not be parsed, later errors may have been hidden: only those in the new lines count.
    """
    known = Counter(
        (moved, _key(found.message)) for found in before.findings if (moved := change.moved(found.line)) is not None
    )
    new = []
    for found in after.findings:
        key = (found.line, _key(found.message))
        if known[key]:
            known[key] -= 1
        elif before.parsed or change.made(found.line):
            new.append(found)
    return new


def check(environment: Environment, path: str, texts: Iterable[str]) -> list[Check] | None:
    """Check each of the texts, which are versions of the file ``path``; None if they cannot be checked."""
    suffix = "." + path.rsplit("/", 1)[-1].rpartition(".")[2].lower()
    if suffix in (".py", ".pyi", ".json", ".toml"):
        return _by_python(environment, suffix, list(texts))
    if suffix in (".sh", ".bash"):
        checks = [_by_bash(environment, text) for text in texts]
        known = [one for one in checks if one is not None]
        return known if len(known) == len(checks) else None
    return None


def _by_python(environment: Environment, suffix: str, texts: list[str]) -> list[Check] | None:
    ran = environment.run(
        argv=["python3", "-I", "-c", PROGRAM, suffix],
        stdin=json.dumps(texts),
        session=None,
        timeout_seconds=SECONDS,
    )
    if not ran.ok or ran.result.exit_code != 0 or ran.result.truncated:
        return None
    try:
        told = json.loads(ran.result.stdout)
        checks = [_check(one) for one in told]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # whatever is there calls itself python3
    return checks if len(checks) == len(texts) else None


def _check(told: Any) -> Check:
    findings = [Finding(int(line), str(message)[:MAX_MESSAGE_CHARS]) for line, message in told["found"][:MAX_FINDINGS]]
    return Check(tuple(findings), bool(told["parsed"]))


def _by_bash(environment: Environment, text: str) -> Check | None:
    ran = environment.run(argv=["bash", "-n"], stdin=text, session=None, timeout_seconds=SECONDS)
    if not ran.ok or ran.result.exit_code is None or ran.result.truncated:
        return None
    if ran.result.exit_code == 0:
        return Check()
    told = _OF_BASH.findall(ran.result.stderr)[:MAX_FINDINGS]
    return Check(tuple(Finding(int(line[:9]), message[:MAX_MESSAGE_CHARS]) for line, message in told[:1]), parsed=False)


def _key(message: str) -> str:
    """Return a message without its line number, which an edit can change."""
    return _LINE_IN_MESSAGE.sub("line", message)


# Runs in the sandbox, isolated from the files of the workspace. If the image has pyflakes, only certain mistakes are reported.
PROGRAM = r"""
import json, re, sys, warnings
warnings.simplefilter("ignore")
SURE = ("UndefinedName", "UndefinedLocal", "UndefinedExport", "DuplicateArgument")

def python(text):
    try:
        compile(text, "text", "exec", dont_inherit=True)
    except SyntaxError as error:
        return {"parsed": False, "found": [[error.lineno or 1, str(error.msg)]]}
    except ValueError as error:
        return {"parsed": False, "found": [[1, str(error)]]}
    try:
        import ast
        from pyflakes.checker import Checker
    except ImportError:
        return {"parsed": True, "found": []}
    found = [m for m in Checker(ast.parse(text), "text").messages if type(m).__name__ in SURE]
    return {"parsed": True, "found": [[m.lineno, m.message % m.message_args] for m in found]}

def other(load, text):
    try:
        load(text)
    except ValueError as error:
        line = getattr(error, "lineno", None) or int((re.findall(r"at line (\d+)", str(error)) or [1])[0])
        message = re.sub(r" *\(?(at )?line \d+.*", "", getattr(error, "msg", None) or str(error))
        return {"parsed": False, "found": [[line, message]]}
    return {"parsed": True, "found": []}

kind, texts = sys.argv[1], json.load(sys.stdin)
if kind == ".json":
    told = [other(json.loads, text) for text in texts]
elif kind == ".toml":
    import tomllib
    told = [other(tomllib.loads, text) for text in texts]
else:
    told = [python(text) for text in texts]
print(json.dumps(told))
"""
