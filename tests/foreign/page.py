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
E2B_PAGE = ROOT / "docs/e2b.md"
# Of the first suite each part is a row, of the others the whole.
E2B_SUITES = {"e2b": "", "e2b-templates": "templates", "e2b-code-interpreter": "code interpreter"}
_BEGIN, _END = "<!-- written by make foreign -->\n", "<!-- until here -->\n"
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
        "parts": outcome.parts,
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


def e2b_page() -> str:
    """Return docs/e2b.md with the table of what passes, by the parts of E2B's suites."""
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    rows = ["| part of the suite | tests that pass | client |\n|---|---|---|\n"]
    for suite, whole in E2B_SUITES.items():
        result = results.get(suite, {})
        sums: dict[str, list[int]] = {}
        for part, counts in sorted(result.get("parts", {}).items()):
            name = whole or (part if part.startswith("sandbox: ") else part.partition(":")[0])
            sums[name] = [sum(each) for each in zip(counts, sums.get(name, [0, 0]), strict=True)]
        rows += [
            f"| {name.removeprefix('sandbox: ').replace('_', ' ')} | {passed} of {ran} | {result['version']}, {result['date']} |\n"
            for name, (passed, ran) in sums.items()
        ]
    before, _, after = E2B_PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    return before + _BEGIN + "".join(rows) + _END + after.partition(_END)[2]
