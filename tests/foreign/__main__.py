"""Run suites of others against Gamebox (make foreign): all of them, or those that are named.

FOREIGN_DIR names a folder with the checkouts of the suites; virtual environments are made there, too. Exits with 1 if a checkout is
missing, a test fails that must pass, or fewer pass than the table says.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .page import E2B_PAGE, PAGE, e2b_page, page, record
from .running import CheckoutError, Outcome, check_names, checkout_of, run
from .suites import SUITES
from .venvs import VenvError


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.foreign", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SUITE", help=" ".join(suite.name for suite in SUITES))
    what = "record the results, and write docs/foreign.md and the table of docs/e2b.md"
    parser.add_argument("--write", action="store_true", help=what)
    options = parser.parse_args(argv)
    unknown = sorted(set(options.names) - {suite.name for suite in SUITES})
    if unknown:
        parser.error(f"there is no suite {unknown[0]}; there are {', '.join(suite.name for suite in SUITES)}")
    chosen = [suite for suite in SUITES if suite.name in options.names or not options.names]
    folder = Path(os.environ.get("FOREIGN_DIR", "")).absolute()
    missing = [] if os.environ.get("FOREIGN_DIR") else ["FOREIGN_DIR is not set: name a folder for checkouts and environments."]
    for suite in chosen:
        try:
            if suite.checkout:
                checkout_of(suite.checkout, folder)
            if suite.domain:
                check_names(suite.domain)
        except CheckoutError as error:
            missing.append(f"{suite.name}: {error}")
    if missing:
        print("\n".join(missing), file=sys.stderr)
        return 1
    good = True
    for suite in chosen:
        print(f"{suite.name}: {suite.subject}", flush=True)
        try:
            outcome = run(suite, folder)
        except VenvError as error:
            print(error, file=sys.stderr)
            good = False
            continue
        _show(outcome, folder)
        good &= outcome.good
        if options.write:
            record(outcome)
            PAGE.write_text(page(SUITES), encoding="utf-8")
            E2B_PAGE.write_text(e2b_page(), encoding="utf-8")
    return 0 if good else 1


def _show(outcome: Outcome, folder: Path) -> None:
    log = folder / f"{outcome.suite}.log"
    log.write_text(outcome.log)
    print(f"  {outcome.version}: {outcome.passed} passed, {len(outcome.failed)} failed, {outcome.skipped} skipped ({log})")
    for name in outcome.failed:
        print(f"  {'may fail' if name in outcome.excused else 'failed'}: {name}")
    if outcome.passed < outcome.wanted:
        print(f"  at least {outcome.wanted} must pass")


if __name__ == "__main__":
    sys.exit(main())
