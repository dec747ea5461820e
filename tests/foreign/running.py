"""Run a foreign suite and read its report."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sandbox.service.tls.local import resolving_hint
from tests.servers.gamebox_service import ServiceProcess

from .suite import Checkout, Place, Suite
from .venvs import module_version, modules_of, venv_of, version_in


class CheckoutError(Exception):
    """A checkout is missing or is not the one that is wanted, or a name leads nowhere; the message says which."""


@dataclass(frozen=True)
class Outcome:
    """What came of a suite. ``failed`` are the names of tests; ``excused`` those of them that may fail.

    ``parts`` are the folders and files of the suite, with how many tests of each passed, and how many passed or failed.
    """

    suite: str
    version: str
    passed: int
    skipped: int
    failed: tuple[str, ...]
    excused: tuple[str, ...]
    wanted: int
    log: str
    parts: Mapping[str, tuple[int, int]]

    @property
    def good(self) -> bool:
        """Whether enough passed, and nothing failed that must pass."""
        return self.passed >= self.wanted and set(self.failed) == set(self.excused)


def checkout_of(checkout: Checkout, folder: Path) -> Path:
    """Return the folder of a checkout. Raises CheckoutError unless it is there, at its commit."""
    path = folder / checkout.folder_name
    asked = subprocess.run(["git", "-C", str(path), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if asked.returncode or asked.stdout.strip() != checkout.commit:
        found = f"is at {asked.stdout.strip()}" if not asked.returncode else "is missing"
        raise CheckoutError(f"{path} {found}. Clone {checkout.repository} there and check out {checkout.commit}.")
    return path


def check_names(domain: str) -> None:
    """Raise CheckoutError if names below a domain are not found on this host."""
    try:
        socket.getaddrinfo(f"8000-sandbox.{domain}", 443)
    except OSError as error:
        raise CheckoutError(f"names below {domain} lead nowhere. {resolving_hint(domain)}") from error


def run(suite: Suite, folder: Path) -> Outcome:
    """Run the suite with the checkouts and virtual environments of ``folder``. Raises CheckoutError and VenvError."""
    checkout = checkout_of(suite.checkout, folder) if suite.checkout else None
    modules = None if suite.node is None else modules_of(suite, folder)
    python = venv_of(suite, folder) if modules is None else Path(sys.executable)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"gamebox-foreign-{suite.name}-")))
        url = key = ""
        if suite.service is not None:
            (work / "data").mkdir()
            service = ServiceProcess(work / "data", "--stop-all", *suite.service).start()
            stack.callback(service.stop)
            url, key = service.url, service.key
        place = Place(checkout, python, work, url, key, modules)
        # Nothing of this process's own environment of Python is passed on, and nothing that changes what pytest does.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))}
        ours = {"GAMEBOX_URL": url, "GAMEBOX_API_KEY": key} if url else {}
        log = work / "log"
        with log.open("wb") as output:
            try:
                subprocess.run(
                    list(suite.command(place)),
                    cwd=checkout or work,
                    env={**inherited, **ours, **suite.env(place)},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    timeout=suite.minutes * 60,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                output.write(f"\nended after {suite.minutes} minutes\n".encode())
        version = version_in(python, suite.packages[0]) if modules is None else module_version(modules, suite.packages[0])
        return _read_report(suite, version, place.report, log.read_text(errors="replace"))


def _read_report(suite: Suite, version: str, report: Path, log: str) -> Outcome:
    passed, skipped, failed, parts = 0, 0, [], dict[str, tuple[int, int]]()
    for case in ET.parse(report).iter("testcase") if report.exists() else ():
        module = case.get("classname", "")
        name = f"{module.rpartition('.')[2]}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is not None:
            skipped += 1
            continue
        else:
            passed += 1
        good, ran = parts.get(part := part_of(module), (0, 0))
        parts[part] = (good + (name not in failed[-1:]), ran + 1)
    excused = tuple(name for name in failed if name in suite.exceptions or name.partition("::")[2] in suite.exceptions)
    return Outcome(suite.name, version, passed, skipped, tuple(failed), excused, suite.tests, log, parts)


def part_of(module: str) -> str:
    """Return what a module of E2B's suites is about: "sandbox: files", of tests.sync.sandbox_sync.files.test_read."""
    names = [re.sub("^test_|_(a?sync)$", "", each) for each in module.split(".")]
    names = [each for each in names if each not in ("tests", "sync", "async", "shared")]
    return ": ".join(names[:2])
