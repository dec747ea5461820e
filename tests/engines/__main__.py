"""``python -m tests.engines [ENGINE …]``: try Gamebox on other engines, and write docs/reference/engines.md."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from .page import PAGE, page, record
from .roots import report
from .running import run
from .table import ENGINES, PARTS, is_excused


def main() -> int:
    """Return 0 if every engine does what it is known to do."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description="Try Gamebox on other engines.")
    parser.add_argument("names", nargs="*", metavar="ENGINE", help=f"of {', '.join(each.name for each in ENGINES)}")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="run these tests alone, on each engine")
    parser.add_argument("--write", action="store_true", help="record the results, and write the page")
    options = parser.parse_args()
    known = {each.name: each for each in ENGINES}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"there is no engine {unknown[0]}; there are {', '.join(known)}")
    if os.geteuid() != 0:
        parser.error("engines are started in namespaces of their own, which needs root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with everything that was started
    failed = []
    for name in options.names or known:
        outcome = run(known[name], options.part or known[name].parts)
        if outcome.problem:
            report(f"  not tried: {outcome.problem}")
        for test in (test for part in outcome.parts.values() for test in part["failed"]):
            report(f"  {'may fail' if is_excused(name, test) else 'failed'}: {test}")
        for left in outcome.left:
            report(f"  left: {left}")
        if not outcome.good():
            failed.append(name)
        if options.write:
            record(outcome, alone=bool(options.part))
            PAGE.write_text(page(), encoding="utf-8")
    report(f"not as expected: {', '.join(failed)}" if failed else "all as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
