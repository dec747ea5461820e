"""Runs INSIDE the sandbox where it has no Jupyter: a Python process that runs cells one after the other in one namespace.

It is sent as text, followed by a call of ``serve``. The value of a last expression is printed, ``%pip`` and ``!command`` do what
they do in IPython.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import os
import re
import shlex
import signal
import subprocess
import sys
import traceback
import types
from typing import Any

MAGIC = re.compile(r"^(?P<indent>\s*)(?P<mark>[%!])(?P<rest>\S.*)$", re.MULTILINE)


def magic(mark: str, rest: str) -> None:
    """Carry out ``%pip ...`` or ``!command``; its output is the cell's."""
    sys.stdout.flush()
    if mark == "!":
        subprocess.run(rest, shell=True, check=False)
        return
    words = shlex.split(rest)
    if words[0] not in ("pip", "cd"):
        raise NameError(f"%{words[0]} is not supported here; use %pip, %cd or !command")
    if words[0] == "cd":
        os.chdir(os.path.expanduser(words[1] if len(words) > 1 else "~"))
        return
    subprocess.run([sys.executable, "-m", "pip", *words[1:]], check=False)
    importlib.invalidate_caches()


def parsed(code: str, name: str) -> ast.Module:
    """Parse a cell; magic lines are looked for only if it is not valid Python without them."""
    try:
        return ast.parse(code, name)
    except SyntaxError:
        plain = MAGIC.sub(lambda m: f"{m['indent']}__magic__({m['mark']!r}, {m['rest']!r})", code)
        if plain == code:
            raise
        return ast.parse(plain, name)


def cell(code: str, number: int, namespace: dict[str, Any]) -> None:
    """Run a cell, and print the value of its last expression."""
    name = f"<cell {number}>"
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree = parsed(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
        if value is not None:
            namespace["_"] = value
            print(repr(value))


def told(error: BaseException) -> None:
    """Print an error as Python does, without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in ("worker", "<string>"):
        frames = frames.tb_next
    try:
        traceback.print_exception(type(error), error, frames)
    except BaseException:
        print(type(error).__name__, file=sys.stderr)


def serve(cells: int, ends: int) -> None:
    """Run cells until there are no more; one descriptor delivers them, and the end of each is reported on the other."""
    import json

    home = types.ModuleType("__main__")
    sys.modules["__main__"] = home
    namespace = home.__dict__
    namespace["__magic__"] = magic
    sys.path.insert(0, "")
    sys.argv = [""]
    for number, line in enumerate(os.fdopen(cells, encoding="utf-8"), 1):
        ok = b"ok\n"
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            cell(json.loads(line), number, namespace)
        except BaseException as error:
            ok = b"error\n"
            told(error)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass  # the cell has closed it, or put something else in its place
        os.write(ends, ok)
