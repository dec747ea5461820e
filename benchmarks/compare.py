"""Compare two runs, row by row: the ratio to the baseline, or the median of rows without one.

    python -m benchmarks.compare OLD.json NEW.json [--worse 1.15]

Rows that got worse or better by more than the factor are marked. The exit code is 1 if a row got worse by more than that, or
misses a goal that it met.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import report

Rows = Mapping[tuple[str, str], dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """A row in two runs. ``factor`` is how many times worse it is now; None if one of the runs does not have it."""

    name: str
    old: float | None
    new: float | None
    factor: float | None
    verdicts: tuple[str, str]


def comparable(row: dict[str, Any] | None) -> float | None:
    """Return what can be compared between machines and days: the ratio, or else the median."""
    if row is None:
        return None
    found = row["ratio"] if row["ratio"] is not None else row["figures"].get("p50")
    return None if found is None else float(found)


def changes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    """Yield a change for each row of either run."""
    rows: list[Rows] = [{(row["group"], row["name"]): row for row in run["rows"]} for run in (old, new)]
    for key in dict.fromkeys([*rows[0], *rows[1]]):
        pair = [each.get(key) for each in rows]
        before, after = map(comparable, pair)
        factor = after / before if before and after else None
        row = pair[1] or pair[0]
        if factor is not None and row is not None and row["unit"] == "1/s":  # more of it is better
            factor = 1 / factor
        verdicts = tuple("" if each is None else report.verdict(each) for each in pair)
        yield Change(": ".join(key), before, after, factor, (verdicts[0], verdicts[1]))


def table(found: Sequence[Change], worse: float) -> str:
    """Return the changes as Markdown."""
    lines = ["| | old | new | new / old | | goal |", "|---|--:|--:|--:|---|---|"]
    for change in found:
        factor = change.factor
        mark = "" if factor is None else "worse" if factor > worse else "better" if factor < 1 / worse else ""
        goal = " → ".join(dict.fromkeys(verdict for verdict in change.verdicts if verdict))
        shown = ["–" if value is None else report.number(value) for value in (change.old, change.new)]
        quotient = "–" if change.old in (None, 0) or change.new is None else f"{change.new / change.old:.2f}"
        lines.append(f"| {change.name} | {' | '.join(shown)} | {quotient} | {mark} | {goal} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--worse", type=float, default=1.15, metavar="FACTOR", help="what counts as worse (%(default)s)")
    options = parser.parse_args(argv)
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in (options.old, options.new)]
    for name, run in zip(("old", "new"), runs, strict=True):
        print(f"{name}: {report.machine_line(run['facts'])}\n")
    found = list(changes(*runs))
    print(table(found, options.worse), end="")
    is_worse = any(c.verdicts == ("met", "missed") or (c.factor or 0) > options.worse for c in found)
    return 1 if is_worse else 0


if __name__ == "__main__":
    sys.exit(main())
