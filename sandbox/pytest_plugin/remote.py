"""Sandboxes of tests that a service has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox.client.environment import RemoteEnvironment

from .options import OptionsError
from .recorded import Recorded

# Options of a test's sandbox that say something to a service.
OF_SERVICES = frozenset(
    {"image", "network", "limits", "workspace", "env", "ca_bundle", "profile", "track_changes", "read_roots", "local"}
)


class RecordedRemote(Recorded, RemoteEnvironment):
    """A RemoteEnvironment that records its operations."""

    @property
    def started(self) -> bool:
        """See ``Recorded``."""
        return self._id is not None and not self._closed


def made_remote(options: Mapping[str, Any]) -> RecordedRemote:
    """Return an environment with these options, not started. Raises OptionsError for one that has no effect there, SandboxError."""
    for name, value in options.items():
        if name not in OF_SERVICES and value:
            raise OptionsError(f"{name} has no effect in a sandbox of a service: leave it out, or unset GAMEBOX_URL")
    return RecordedRemote(**{name: value for name, value in options.items() if name in OF_SERVICES and name != "local"})
