"""Measure Gamebox: every row beside a baseline that takes turns with it, with the goal that it meets or misses.

Without names, the groups of the first list run one after the other, in about six minutes. The table goes to standard output as
Markdown, what is being done to standard error. Read ratios, not milliseconds: machines differ, and other work disturbs all
rows alike.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import machine, report
from .groups import GROUPS
from .measuring import Options, load

EXAMPLES = """examples:
  python -m benchmarks                                   everything of the first list
  python -m benchmarks --quick commands crowd            two groups, with a tenth of the rounds
  python -m benchmarks --out benchmarks/results          keep speed.json and speed.md there
  python -m benchmarks live --sandboxes 500 --rate 200 --minutes 10 --json live.json
  python -m benchmarks growth --out /tmp/growth          pictures, too
  python -m benchmarks.compare old.json new.json
  python -m benchmarks.timeline --out docs/pictures      each hand-over between processes of one run("true")
"""


def parser() -> argparse.ArgumentParser:
    """Return the options of the command line."""
    lists = [
        f"{title}:\n" + "\n".join(f"  {name:<14}{group.summary}" for name, group in GROUPS.items() if group.default is default)
        for title, default in (("groups of a run without names", True), ("groups by name", False))
    ]
    made = argparse.ArgumentParser(
        "python -m benchmarks", description=__doc__, epilog="\n\n".join([*lists, EXAMPLES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("groups", nargs="*", metavar="GROUP", help="what to measure; see below")
    made.add_argument("--quick", action="store_true", help="a tenth of the rounds: does everything work?")
    made.add_argument("--image", default=Options.image, help="image of the sandboxes (%(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE, after each row")
    made.add_argument("--out", type=Path, metavar="FOLDER", help="write rows, table and pictures to FOLDER")
    live = made.add_argument_group("of the group live, and of the crowd of the group network")
    live.add_argument("--sandboxes", type=int, default=Options.sandboxes, help="(%(default)s)")
    live.add_argument("--rate", type=float, default=Options.rate, help="commands per second (%(default)g)")
    live.add_argument("--minutes", type=float, default=Options.minutes, help="(%(default)g)")
    return made


def measure(names: Sequence[str], options: Options, files: Sequence[Path] = ()) -> dict[str, Any]:
    """Measure groups and return the run; ``files`` get it as JSON after each row, so that nothing is lost when it is ended."""
    run: dict[str, Any] = {"facts": {**machine.facts(), "quick": options.quick}, "rows": []}
    began = time.monotonic()
    for name in names:
        print(f"[{time.monotonic() - began:4.0f} s] {name}: {GROUPS[name].summary}", file=sys.stderr, flush=True)
        before = load()
        for row in GROUPS[name].measure(name, options):
            run["rows"].append(replace(row, load=row.load or (before, load())).to_dict(name))
            run["facts"]["seconds"] = round(time.monotonic() - began)
            print(report.line(run["rows"][-1]), file=sys.stderr, flush=True)
            for path in files:
                path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
            before = load()
    return run


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write what was asked for; return the exit code."""
    asked = parser().parse_args(argv)
    if unknown := set(asked.groups) - set(GROUPS):
        parser().error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    names = asked.groups or [name for name, group in GROUPS.items() if group.default]
    options = Options(asked.quick, asked.image, asked.out, asked.sandboxes, asked.rate, asked.minutes)
    files = [] if asked.json is None else [asked.json]
    stem = "-".join(asked.groups) or "speed"
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        files.append(asked.out / f"{stem}.json")
    table = report.markdown(measure(names, options, files))
    if asked.out is not None:
        (asked.out / f"{stem}.md").write_text(table, encoding="utf-8")
    print(table, end="")
    return 0


# One large piece of memory for the frames of all calls, as docs/performance.md advises: else rows would depend on how deep in this
# program they are measured.
main.__code__ = main.__code__.replace(co_stacksize=20_000)

if __name__ == "__main__":
    sys.exit(main())
