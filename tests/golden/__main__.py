"""The prompts that the agents of the product send at fixed points of a scripted run, as files to review.

    python -m tests.golden              write them anew (make golden)
    python -m tests.golden --check      say what is another than in the files; exit code 1 if anything is

A folder other than tests/golden/prompts: --folder DIR. No engine, no network and no model is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .files import PROMPTS, cases, difference, pages_of, strangers


def main(argv: Sequence[str] | None = None) -> int:
    """See above; what is another goes to standard output."""
    parser = argparse.ArgumentParser("python -m tests.golden", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--folder", type=Path, default=PROMPTS)
    given = parser.parse_args(argv)
    changed = 0
    for case in cases():
        pages = pages_of(case)
        if told := difference(pages, given.folder):
            changed += 1
            print(told)
        if not given.check:
            given.folder.mkdir(parents=True, exist_ok=True)
            for name, text in pages.items():
                (given.folder / name).write_text(text, encoding="utf-8")
    for path in strangers(given.folder):
        changed += 1
        print(f"{path.name} is the prompt of no agent.")
        if not given.check:
            path.unlink()
    print(f"{changed} changed", file=sys.stderr)
    return 1 if changed and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
