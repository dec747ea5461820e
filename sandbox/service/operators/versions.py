"""Sandboxes that another version of Gamebox made: this one serves them if it speaks the protocol of their guests."""

from __future__ import annotations

import logging
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from sandbox.errors import ErrorCode, SandboxError
from sandbox.guest.protocol.wire import PROTOCOL
from sandbox.service.fleet import engine
from sandbox.service.store.identity import known_service_id

log = logging.getLogger(__name__)


def check_guests(store: Path) -> None:
    """Raise SandboxError if the service with that store has sandboxes that this version cannot speak with: it would lose them.

    Called before the store is brought to this version, so that the other one can go on. If the engine does not answer, nothing is
    known, and attaching will say it.
    """
    service = known_service_id(store)
    if service is None:
        return
    try:
        listed = engine.listed()
    except SandboxError as error:
        log.warning("the engine does not say which sandboxes there are: %s", error.message)
        return
    own = [each for each in listed if each.of_service == service]
    others = Counter((each.made_by, each.protocol) for each in own if each.protocol != PROTOCOL)
    if not others:
        return
    words = ", ".join(f"{count} of gamebox {made_by} (protocol {speaks})" for (made_by, speaks), count in sorted(others.items()))
    raise SandboxError(
        ErrorCode.setup_failed,
        f"This service has sandboxes that gamebox {version('gamebox')} cannot use (protocol {PROTOCOL}): {words}.",
        "Let them end first: start that version with `gamebox serve --drain`, which exits when they have ended; "
        "or end them with `gamebox rm --force`.",
    )
