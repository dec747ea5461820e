"""Write the generated pages of docs/ anew: docs/api, and the walk in docs/architecture.md (make docs).

``python -m tests.pages --check`` changes nothing and names the pages that differ; exit code 1 if any does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .files import changed_pages, write


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code; pages that differ go to standard output."""
    parser = argparse.ArgumentParser("python -m tests.pages", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--without-walk", action="store_true", help="leave docs/architecture.md alone, which takes a sandbox")
    options = parser.parse_args(argv)
    changed = changed_pages(walk=not options.without_walk)
    for path in changed:
        print(path)
    if not options.check:
        write(changed)
    return 1 if changed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
