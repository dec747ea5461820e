"""The configuration of an image from an archive: what is kept of it, for the engine."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from sandbox.docker.builds.engine_images import FINISHED_LABEL, OWNER_LABEL, owner_digest
from sandbox.docker.images.images import CONTENT_LABEL
from sandbox.docker.images.manifests import MANIFEST_LABEL

from .archive_reader import unsafe

IMPORTED_LABEL = "dev.gamebox.imported"
_MOST_TEXTS, _MOST_CHARS = 1000, 256 << 10
_LEFT_OUT = ("Healthcheck", "OnBuild", "Shell", "Volumes")
_PORT = re.compile(r"[0-9]{1,5}/(tcp|udp|sctp)")
_OWN = "dev.gamebox."
# What says how one of our own images was made, which is believed of nothing but an archive that its user calls one of them.
_OF_OURS = (CONTENT_LABEL, "dev.gamebox.image")


def clean_config(config: dict[str, Any], diff_ids: tuple[str, ...], *, own: bool) -> bytes:
    """Return the configuration with what a sandbox or a container needs of it: variables, folder, user, program, ports and labels.

    Labels of Gamebox are left out, but for what the image contains: with them an image could pass for a layer in the cache, or for
    another one of ours. ``own`` says that it is to be one of ours. Raises SandboxError ``unsafe_archive``.
    """
    settings = config.get("config")
    settings = settings if isinstance(settings, dict) else {}
    ours = (*_OF_OURS, MANIFEST_LABEL) if own else (MANIFEST_LABEL,)
    labels = {
        name: value
        for name, value in _texts_by_name(settings.get("Labels"), "labels").items()
        if not name.startswith(_OWN) or name in ours
    }
    if not own:
        labels |= {OWNER_LABEL: owner_digest(""), FINISHED_LABEL: "1", IMPORTED_LABEL: "1"}
    env = [each for each in _texts(settings.get("Env"), "variables") if "=" in each]
    asked = settings.get("ExposedPorts")
    ports = [name for name in list(asked)[:_MOST_TEXTS] if _PORT.fullmatch(str(name))] if isinstance(asked, dict) else []
    kept: dict[str, Any] = {
        "Env": env,
        "Cmd": _texts(settings.get("Cmd"), "command") or None,
        "Entrypoint": _texts(settings.get("Entrypoint"), "entry point") or None,
        "WorkingDir": _text(settings.get("WorkingDir"), "folder"),
        "User": _text(settings.get("User"), "user"),
        "Labels": labels,
        "ExposedPorts": {name: {} for name in ports},
    }
    created = _date(config.get("created"))
    whole = {
        "architecture": _text(config.get("architecture"), "architecture"),
        "os": _text(config.get("os"), "system"),
        "created": created,
        "config": kept,
        "history": [{"created": created, "created_by": "gamebox image import"} for _ in diff_ids],
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
    }
    return json.dumps(whole, sort_keys=True).encode()


def left_out(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the settings that an image would have elsewhere and that ``clean_config`` leaves out."""
    settings = config.get("config")
    if not isinstance(settings, dict):
        return ()
    return tuple(name for name in _LEFT_OUT if settings.get(name) and settings[name] != {"Test": ["NONE"]})


def _texts(value: object, what: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > _MOST_TEXTS:
        raise unsafe(f"its {what} cannot be read")
    found = [_text(each, what) for each in value]
    if sum(map(len, found)) > _MOST_CHARS:
        raise unsafe(f"its {what} has more than {_MOST_CHARS} characters")
    return found


def _texts_by_name(value: object, what: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise unsafe(f"its {what} cannot be read")
    return dict(zip(_texts(list(value), what), _texts(list(value.values()), what), strict=True))


def _text(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value or len(value) > _MOST_CHARS:
        raise unsafe(f"its {what} cannot be read")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise unsafe(f"its {what} cannot be read") from None
    return value


def _date(value: object) -> str:
    try:
        return datetime.fromisoformat(str(value)).astimezone().isoformat()
    except (ValueError, OverflowError):
        return "1970-01-01T00:00:00Z"
