"""Run schemathesis over the whole API of a service that is started for it, with sandboxes of the machine's engine (make api).

Exits with 1 if a check failed, or if a route was never carried out. The seed is printed: with it, a run can be repeated.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.servers.gamebox_service import ServiceProcess

from .running import run

IMAGE = "gamebox/base"


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.openapi", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--examples", type=int, default=100, help="requests to each route in the phase of fuzzing")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--phases", default="examples,coverage,fuzzing,stateful")
    parser.add_argument("options", nargs="*", help="further options of schemathesis run, after --")
    options = parser.parse_args(argv)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gamebox-openapi-") as name:
        folder = Path(name)
        service = ServiceProcess(folder / "data", "--stop-all", "--behind-proxy", "127.0.0.1/32").start()
        try:
            asked = ["--phases", options.phases, "--max-examples", str(options.examples), "--seed", str(options.seed)]
            found = run(service.url, service.key, IMAGE, folder, [*asked, *options.options])
        finally:
            service.stop()
    print(found.output)
    for route in found.never_carried_out:
        print(f"never carried out: {route} ({sorted(found.statuses.get(route, ()))})")
    return 0 if found.succeeded and not found.never_carried_out else 1


if __name__ == "__main__":
    sys.exit(main())
