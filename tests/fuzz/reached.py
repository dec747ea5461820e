"""Which branches of the parsers a run of a target reaches, measured by coverage.py in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import coverage

ROOT = Path(__file__).parents[2]
PARSERS = {
    "host": (
        "sandbox/pipe/transport.py", "sandbox/pipe/pending_request.py", "sandbox/pipe/reattaching.py",
        "sandbox/environment/parts/pausing.py",
        "sandbox/pipe/replies.py", "sandbox/guest/protocol/wire.py",
    ),
    "guest": tuple(
        f"sandbox/guest/{name}.py"
        for name in (
            "protocol/wire", "protocol/reattach", "loop/link", "loop/dispatch", "loop/arguments", "loop/operations",
            "loop/answer_sizes", "loop/host_lease", "commands/streams",
        )
    ),
}  # fmt: skip
SETTINGS = """
[run]
branch = true
parallel = true
data_file = {data}/data
include = {root}/sandbox/*
"""


def measure(target: str, frames: int, seed: int) -> str:
    """Run the target and answer the table of its parsers. Raises CalledProcessError where the run fails or finds something."""
    with tempfile.TemporaryDirectory(prefix="fuzz-reached-") as folder:
        os.chmod(folder, 0o777)  # guests write there as a user who owns nothing
        settings = Path(folder, "settings")
        settings.write_text(SETTINGS.format(data=folder, root=ROOT), encoding="utf-8")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "tests.fuzz", "run"]
        command += ["--target", target, "--frames", str(frames), "--seed", str(seed)]
        subprocess.run(command, cwd=ROOT, check=True)
        measured = coverage.Coverage(config_file=str(settings))
        measured.combine()
        report = Path(folder, "report")
        measured.json_report(outfile=str(report), include=[str(ROOT / name) for name in PARSERS[target]])
        return _table(json.loads(report.read_text(encoding="utf-8"))["files"], target)


def _table(files: dict[str, Any], target: str) -> str:
    by_name = {os.path.relpath(ROOT / path, ROOT): found for path, found in files.items()}
    shown = [f"{target:32} lines  branches"]
    for name in PARSERS[target]:
        found, summary = by_name[name], by_name[name]["summary"]
        lines = f"{summary['covered_lines']}/{summary['num_statements']}"
        branches = f"{summary['covered_branches']}/{summary['num_branches']}"
        shown.append(f"{name:32} {lines:>7} {branches:>7}")
        missing = found["missing_lines"]
        ways = [f"{a}->{'exit' if b < 0 else b}" for a, b in found["missing_branches"] if a not in missing]
        if missing or ways:
            shown.append(f"    not reached: {', '.join([*map(str, missing), *ways])}")
    return "\n".join(shown)


def leave_measured() -> None:
    """In a forked process that ends by ``os._exit``: write what it reached, where it is measured. Its own children do not."""
    running = coverage.Coverage.current()
    if running is None:
        return
    pid, leave = os.getpid(), os._exit

    def measured_exit(code: int) -> None:
        if os.getpid() == pid:
            running.stop()
            running.save()
        leave(code)

    os._exit = measured_exit  # type: ignore[assignment]
