"""Making the workspace and the home the user's own and /tmp everybody's, where the engine does not."""

from __future__ import annotations

import os

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .loop.context import Place

LOST_AND_FOUND = b"lost+found"
TMP = b"/tmp"


def settle(disk: dict[str, Any], place: Place) -> None:
    """Hand over plain volumes, tidy up new file systems, make the home. ``disk`` is what the host says of it."""
    if disk.get("kind") == "volume":
        for folder in {place.workspace, place.home}:
            if os.path.ismount(folder):
                os.chown(folder, place.uid, place.gid)
    if disk.get("kind") == "ext4":
        with kernel.ActingOnFiles(place.uid, place.gid, True):  # who owns the folder that it is in
            for folder in (place.workspace, place.home):
                _remove_empty(os.path.join(folder, LOST_AND_FOUND))
    if disk.get("kind") in ("volume", "ext4") and os.path.ismount(TMP):  # made by root, as this process is
        _remove_empty(os.path.join(TMP, LOST_AND_FOUND))
        os.chmod(TMP, 0o1777)  # noqa: S103  (as every /tmp)
    if place.uid == 0:
        os.makedirs(place.home, 0o700, exist_ok=True)


def _remove_empty(folder: bytes) -> None:
    try:
        os.rmdir(folder)
    except OSError:  # not there, or somebody put something in
        pass
