"""Errors and notices in the words for a person who typed ``gamebox``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sandbox.readers import hint_for

if TYPE_CHECKING:
    from sandbox.envelope import Envelope


def message_for_cli(message: str) -> str:
    """Return the message of an error, with options in place of arguments."""
    return message.replace("keep_seconds=", "--keep-seconds ")


def envelope_for_cli(answer: Envelope[Any]) -> Envelope[Any]:
    """Return the answer with the hints for this reader."""
    notices = tuple(dataclasses.replace(n, hint=hint_for("cli", n.hint)) for n in answer.notices)
    if answer.ok:
        return dataclasses.replace(answer, notices=notices)
    return dataclasses.replace(answer, notices=notices, hint=hint_for("cli", answer.hint))
