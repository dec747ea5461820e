"""Tables: rows as Markdown, and the parts of pages that show the last full run.

    python -m benchmarks.report [--check]

Writes the parts of docs/performance.md and README.md between their markers anew, from what `--out benchmarks/results` kept there;
with --check it changes nothing, and names the pages that differ (exit code 1 if any does).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
# The runs that the page shows, if they are kept.
RUNS = ("speed", "live", "growth", "browser", "service", "service_restart", "service_live")
HEAD = "| | median | p95 | p99 | | beside it | median | × | goal | | load |\n|---|--:|--:|--:|---|---|--:|--:|---|---|---|"
SHOWN = {"p50", "p95", "p99", "min", "rounds"}
# The rows of README.md: group and name in a run, and what they are there.
README_ROWS = (
    ("commands", '0 files: run("true", session=None)', '`env.run("true", session=None)`'),
    ("commands", '0 files: run("true")', '`env.run("true")`, in a session'),
    ("commands", '0 files: run(argv=["/bin/true"])', '`env.run(argv=["/bin/true"])`'),
    ("loaded", "beside 4 busy processes: docker-py exec_run", "docker-py `exec_run`, beside 4 busy processes"),
    ("loaded", 'beside 4 busy processes: run("true")', '`env.run("true")`, beside 4 busy processes'),
    ("pool", "acquire, first command answered", "a sandbox from the warm pool, first command answered"),
    ("starts", "cold create, on disk", "a new sandbox, first command answered"),
    ("starts", "close, on disk", "`env.close()`"),
    ("files", "in memory: read 1 KiB", "read a file of 1 KiB"),
    ("output", "10 MiB of output, kept whole", "10 MiB of output, kept whole"),
    ("memory", "after start and one run", "memory of a sandbox after one command"),
)


def number(value: float) -> str:
    """Return a figure with three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def verdict(row: dict[str, Any]) -> str:
    """Return whether a row meets its goals: met, missed, or nothing if it has none or was not measured."""
    found = [goal["met"] for goal in row["goals"]]
    return "" if not found or None in found else "met" if all(found) else "missed"


def line(row: dict[str, Any]) -> str:
    """Return a row of the Markdown table."""
    figures, beside = row["figures"], row["beside"]
    further = ", ".join(f"{name} {number(value)}" for name, value in figures.items() if name not in SHOWN)
    note = "; ".join(part for part in (further, row["note"]) if part)
    cells = [
        row["name"] + (f" ({note})" if note else ""),
        *(number(figures[name]) if name in figures else "" for name in ("p50", "p95", "p99")),
        row["unit"] if figures else "",
        row["baseline"],
        number(beside["p50"]) if "p50" in beside else "",
        f"{row['ratio']:.2f}" if row["ratio"] is not None else "",
        ", ".join(goal["goal"] for goal in row["goals"]),
        verdict(row),
        " – ".join(f"{value:.1f}" for value in row["load"] or ()),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def machine_line(facts: dict[str, Any]) -> str:
    """Return the machine, the engine and the commit of a run in one sentence."""
    return (
        f"{facts['processor']}, {facts['cpus']} processors, {facts['memory_gib']} GiB, Linux {facts['kernel']}, "
        f"{facts['engine']}, Python {facts['python']}, commit {facts['commit']}, {facts['taken'][:16]}, "
        f"load {facts['load']} before the run" + (", quick" if facts.get("quick") else "") + "."
    )


def markdown(run: dict[str, Any]) -> str:
    """Return a whole run as a table for each group."""
    parts = [machine_line(run["facts"])]
    for group in dict.fromkeys(row["group"] for row in run["rows"]):
        lines = [line(row) for row in run["rows"] if row["group"] == group]
        parts.append(f"**{group}**\n\n{HEAD}\n" + "\n".join(lines))
    judged = [verdict(row) for row in run["rows"]]
    parts.append(f"{judged.count('met')} rows meet their goals, {judged.count('missed')} miss one.")
    return "\n\n".join(parts) + "\n"


def short_table(run: dict[str, Any]) -> str:
    """Return the rows that README.md shows."""
    rows = {(row["group"], row["name"]): row for row in run["rows"]}
    lines = ["| | median | | × baseline | baseline |", "|---|--:|---|--:|---|"]
    for group, name, text in README_ROWS:
        row = rows.get((group, name))
        if row is not None and "p50" in row["figures"]:
            ratio = f"{row['ratio']:.2f}" if row["ratio"] is not None else ""
            lines.append(f"| {text} | {number(row['figures']['p50'])} | {row['unit']} | {ratio} | {row['baseline']} |")
    return "\n".join(lines) + "\n\n" + machine_line(run["facts"]) + "\n"


def with_part(page: str, name: str, text: str) -> str:
    """Return a page with the text between the markers of that name replaced. Raises ValueError if it does not have them."""
    begin, end = f"<!-- {name}: begin, written by python -m benchmarks.report -->", f"<!-- {name}: end -->"
    found = re.sub(f"(?s)({re.escape(begin)}\n).*?({re.escape(end)})", lambda m: f"{m[1]}\n{text}\n{m[2]}", page)
    if begin not in page or end not in page:
        raise ValueError(f"the page has no part {name!r}")
    return found


def pages(folder: Path = RESULTS) -> dict[Path, str]:
    """Return the pages as they have to be with what is in ``folder``."""
    runs = {name: json.loads(path.read_text(encoding="utf-8")) for name in RUNS if (path := folder / f"{name}.json").is_file()}
    pictures = [f"![Growth with {each.stem[7:]}](../{each.relative_to(ROOT)})" for each in sorted(folder.glob("growth-*.svg"))]
    timeline = (folder / "timeline.txt").read_text(encoding="utf-8")
    performance, readme = ROOT / "docs/performance.md", ROOT / "README.md"
    page = with_part(performance.read_text(encoding="utf-8"), "timeline", f"```text\n{timeline}```\n")
    page = with_part(page, "speed", "\n".join([*map(markdown, runs.values()), *pictures]).rstrip() + "\n")
    return {
        performance: page,
        readme: with_part(readme.read_text(encoding="utf-8"), "speed", short_table(runs["speed"])),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.report", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    found = pages()
    changed = [path for path, text in found.items() if path.read_text(encoding="utf-8") != text]
    for path in changed:
        print(path.relative_to(ROOT))
        if not options.check:
            path.write_text(found[path], encoding="utf-8")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
