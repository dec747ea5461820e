"""Run schemathesis over the whole API of a service that is started for it, with sandboxes of the machine's engine (make api).

Exits with 1 if a check failed, if a route was never carried out, or if the service logged an unexpected exception. The seed is
printed: with it, a run can be repeated. With --folder, the answers that were 5xx and the log of the service are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.servers.gamebox_service import ServiceProcess

from .running import run

IMAGE = "gamebox/base"


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.openapi", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=100, help="requests to each route in the phase of fuzzing")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("--folder", type=Path, help="an empty folder for what is found; without it, nothing is kept")
    parser.add_argument("options", nargs="*", help="further options of schemathesis run, after --")
    options = parser.parse_args(argv)
    print(f"seed {options.seed}", flush=True)
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gamebox-openapi-")))
        # With the words of exceptions, which may quote what was sent.
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("GAMEBOX_SERVICE_LOG_LEVEL", "debug")
        service = ServiceProcess(
            folder / "data", "--stop-all", "--behind-proxy", "127.0.0.1/32", "--log-format", "json"
        ).start()
        try:
            asked = ["--phases", options.phases, "--max-examples", str(options.examples), "--seed", str(options.seed)]
            found = run(service.url, service.key, IMAGE, folder, [*asked, *options.options])
        finally:
            service.stop()
        errors = _errors(folder / "service.log")
    print(found.output)
    for route in found.never_carried_out:
        print(f"never carried out: {route} ({sorted(found.statuses.get(route, ()))})")
    for error in errors:
        print(f"logged: {error}")
    return 0 if found.succeeded and not found.never_carried_out and not errors else 1


def _errors(path: Path) -> list[str]:
    """Return the lines of the log of a service that are about what it did not expect."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.startswith("{") and json.loads(line)["level"] == "error"]


if __name__ == "__main__":
    sys.exit(main())
