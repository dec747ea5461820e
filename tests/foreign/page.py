"""docs/foreign.md: the results of the last run of each suite, kept in a JSON file beside this program."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .running import Outcome
from .suite import Suite

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs/foreign.md"
_HEAD = """\
# Suites of others that Gamebox passes

Each suite was written by someone else for a tool of theirs, and is run unchanged against Gamebox by `make foreign`, in a virtual
environment of its own. `FOREIGN_DIR` names a folder with the checkouts that it needs; it says which are missing. This page is
written by that command (`--write`).

| for | version | passed | skipped | may fail | run on | suite |
|---|---|---|---|---|---|---|
"""


def record(outcome: Outcome) -> None:
    """Put the outcome in the place of the suite's last one."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[outcome.suite] = {
        "version": outcome.version,
        "passed": outcome.passed,
        "skipped": outcome.skipped,
        "failed": sorted(outcome.failed),
        "date": datetime.now(UTC).date().isoformat(),
    }
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def page(suites: Iterable[Suite]) -> str:
    """Return the page for the recorded results."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows, reasons = [], []
    for suite in suites:
        result = results.get(suite.name)
        if result is None:
            continue
        origin = f"{suite.checkout.repository} at `{suite.checkout.commit[:12]}`" if suite.checkout else suite.origin
        columns = [
            suite.subject,
            result["version"],
            f"{result['passed']} of {result['passed'] + len(result['failed'])}",
            result["skipped"],
            len(suite.exceptions),
            result["date"],
            f"`{suite.name}`: {origin}",
        ]
        rows.append(f"| {' | '.join(map(str, columns))} |\n")
        reasons += [f"- `{suite.name}`, `{test}`: {reason}\n" for test, reason in suite.exceptions.items()]
    if reasons:
        reasons.insert(0, "\n## Tests that may fail, and why\n\n")
    return _HEAD + "".join(rows) + "".join(reasons)
