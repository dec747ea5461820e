"""The options of ``gamebox run`` and ``gamebox agent`` that say what network a sandbox has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .guest_environment import GuestEnvironment
    from .network.policy import Network
    from .packages.cache import PackageCache

NETWORK_HELP = "none (as without it), open (all public hosts), or bridge (no rules; also UDP)."
KEEP_HELP = "Leave the sandbox running, without its --network and --allow; its id is printed on standard error."
IN_HELP = "Run it in a kept sandbox, by its id or name; give --network or --allow again, for rules do not stay with it."
ALLOW_HELP = "A host to open, as in example.com or '*.example.org:443'; may be repeated."
CACHE_HELP = (
    "Let pip, uv and npm install with no network: what they ask for is fetched by the host, once, and kept here."
)


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


def cache_in(folder: Path | None, network: str = "none") -> PackageCache | None:
    """The package cache that ``--cache`` names, of the indexes that this host uses. Raises SandboxError."""
    from .cli import bad_input
    from .packages.cache import PackageCache

    if folder is not None and network == "bridge":
        raise bad_input(f"--cache {folder} means nothing with --network bridge.", "Leave one of them out.")
    return None if folder is None else PackageCache(folder)


def kept_one(
    known: str,
    take_over: bool,
    network: str | None,
    allow: Sequence[str],
    cache: Path | None,
    report: Callable[[str], None],
) -> GuestEnvironment:
    """The kept sandbox of that id or name, with what these options say of its network. Raises SandboxError."""
    from .docker.environment import DockerEnvironment

    rules = policy_of(network or "none", allow) if allow or network is not None else None
    return DockerEnvironment.attach(
        known, take_over=take_over, network=rules, cache=cache_in(cache, network or "none"), report=report
    )
