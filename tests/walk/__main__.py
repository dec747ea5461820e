"""Print the way of a call through the files of host and guest: ``python -m tests.walk run``, or ``read``."""

from __future__ import annotations

import sys

from .walk import CALLS, words

if __name__ == "__main__":
    for name in sys.argv[1:] or CALLS:
        print(words(name))
