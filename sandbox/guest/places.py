"""Preparing the workspace, the home and /tmp: their owners and modes, where the engine does not set them."""

from __future__ import annotations

import os

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .loop.context import Place

LOST_AND_FOUND = b"lost+found"
TMP = b"/tmp"


def prepare(disk: dict[str, Any], place: Place) -> None:
    """Give plain volumes to the user, tidy up new file systems, and make the home. ``disk`` is the host's description of both."""
    if disk.get("kind") == "volume":
        for folder in {place.workspace, place.home}:
            if os.path.ismount(folder):
                os.chown(folder, place.uid, place.gid)
    if disk.get("kind") == "ext4":
        with kernel.ActingOnFiles(place.uid, place.gid, True):  # the owner of the folder that contains it
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
    except OSError:  # missing, or not empty
        pass
