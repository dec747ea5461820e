"""The prompts that the product's agents send at fixed points of a scripted run, as files to review.

    python -m tests.golden              write them anew (make golden)
    python -m tests.golden --check      print what differs from the files; exit code 1 if anything does

Another folder than tests/golden/prompts: --folder DIR. No engine, network or model is needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .files import PROMPTS, difference, pages, strangers


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the files; the difference goes to standard output."""
    parser = argparse.ArgumentParser(
        "python -m tests.golden", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--folder", type=Path, default=PROMPTS)
    arguments = parser.parse_args(argv)
    changed = 0
    for name, text in pages().items():
        if diff := difference({name: text}, arguments.folder):
            changed += 1
            print(diff)
        if not arguments.check:
            arguments.folder.mkdir(parents=True, exist_ok=True)
            (arguments.folder / name).write_text(text, encoding="utf-8")
    for path in strangers(arguments.folder):
        changed += 1
        print(f"{path.name} belongs to no agent.")
        if not arguments.check:
            path.unlink()
    print(f"{changed} changed", file=sys.stderr)
    return 1 if changed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
