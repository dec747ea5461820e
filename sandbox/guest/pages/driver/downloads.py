"""What a page downloads: nothing, but in a step that asks for it, and then one file of bounded size."""

from __future__ import annotations

import os
from typing import Any

from .devtools import DevTools

MOST_FILE_BYTES = 16 << 20

Fields = dict[str, Any]


class Downloads:
    """What the page downloads. Nothing, but in a step that asks for it, and then one file."""

    def __init__(self, tools: DevTools, folder: str) -> None:
        self._tools = tools
        self.folder = folder
        self.path = ""
        self.limit = MOST_FILE_BYTES
        self.refused: Fields | None = None
        self._wanted = False
        self._reset()

    def _reset(self) -> None:
        self.name: str | None = None
        self._guid = ""
        self.ended = False
        self.problem = ""

    def deny(self) -> None:
        """Have the browser cancel every download, and report it."""
        self._tools.send("Browser.setDownloadBehavior", {"behavior": "deny", "eventsEnabled": True})

    def begin(self) -> None:
        """Allow one download."""
        self._reset()
        self._wanted = True
        os.makedirs(self.folder, exist_ok=True)
        for name in os.listdir(self.folder):
            os.unlink(os.path.join(self.folder, name))
        setting = {"behavior": "allowAndName", "downloadPath": self.folder, "eventsEnabled": True}
        self._tools.send("Browser.setDownloadBehavior", setting)

    def forget(self) -> None:
        """Forget what was refused."""
        self.refused = None

    def end(self) -> None:
        """Allow no more."""
        self._wanted = False
        self.deny()

    def take(self, method: str, values: Fields) -> None:
        """Take an event of a download."""
        guid = str(values.get("guid"))
        if method == "Browser.downloadWillBegin":
            name = str(values.get("suggestedFilename") or "download")[:200]
            if self._wanted and self.name is None:
                self.name, self._guid, self.path = name, guid, os.path.join(self.folder, os.path.basename(guid))
            else:
                self.refused = {"name": name, "url": str(values.get("url"))[:2048]}
                self._tools.send("Browser.cancelDownload", {"guid": guid})
        elif method == "Browser.downloadProgress" and guid == self._guid and self._guid:
            received, state = values.get("receivedBytes"), values.get("state")
            if isinstance(received, int | float) and received > self.limit:
                self.problem = "download_too_large"
                self._tools.send("Browser.cancelDownload", {"guid": guid})
            if state == "completed":
                self.ended = True
            elif state == "canceled":
                self.problem = self.problem or "download_cancelled"
                self.ended = True
