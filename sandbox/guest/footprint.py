"""Give back memory that only the start of the guest needed."""

from __future__ import annotations

from . import kernel

MADV_DONTNEED = 4


def release_start() -> None:
    """Unmap the code and constants that were used so far, 4 MiB; those that are used again come back from the page cache.

    All sandboxes of an engine share them there. Call this while no other thread loads a library.
    """
    with open("/proc/self/smaps") as maps:
        area, read_only = "", False
        for line in maps:
            name, _, rest = line.partition(" ")
            if not name.endswith(":"):
                area, read_only = name, rest.startswith("r") and rest[1] == "-" and "/" in rest
            # What the loader relocated is read-only as well, and differs from its file: it would be lost.
            elif name == "Anonymous:" and read_only and rest.split()[0] == "0":
                start, end = (int(bound, 16) for bound in area.split("-"))
                kernel.advise(start, end - start, MADV_DONTNEED)
