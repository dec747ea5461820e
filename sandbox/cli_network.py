"""The options of ``gamebox run`` and ``gamebox agent`` that say what network a sandbox has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .network.policy import Network

NETWORK_HELP = "none, open (all public hosts), or bridge (no rules; also UDP)."
ALLOW_HELP = "A host to open, as in example.com or '*.example.org:443'; may be repeated."


def policy_of(network: str, allow: Sequence[str]) -> Network:
    """The policy that ``--network`` and ``--allow`` name together. Raises SandboxError for what is no good."""
    from .cli import bad_input
    from .network.policy import Network

    if network == "open":
        return Network.open(*allow)
    if network == "bridge":
        if allow:
            raise bad_input(f"--allow {allow[0]} means nothing with --network bridge.", "Leave one of them out.")
        return Network.bridge()
    if network != "none":
        raise bad_input(f"--network {network!r} is not known.", "Use none, open or bridge.")
    return Network.allow(*allow) if allow else Network.none()
