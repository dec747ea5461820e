"""Which options the parts of the catalogue take in a file, as JSON schemas: held to before any part is imported, made or started.

A part that is not named here takes none. That each schema takes what its part takes, and nothing else, is tested against the parts.
``says`` is what is told in place of the validator's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]


def _of(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _whole(least: int) -> Schema:
    return {"type": "integer", "minimum": least}


_TEXT: Schema = {"type": "string"}
_NAMES: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}}
_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_TIMES: Schema = {"type": "integer", "minimum": 0, "not": {"const": 1}, "says": "must be 0 (off) or at least 2"}
_SERVER: Schema = {
    **_of(
        command={"type": "string", "pattern": r"\S", "says": "must be a shell command"},
        cwd=_TEXT,
        env=_TEXTS,
        url={"type": "string", "pattern": "^https?://", "says": "must be an address, http(s)://..."},
        headers=_TEXTS,
        tools=_NAMES,
        timeout_seconds={"type": "number", "exclusiveMinimum": 0, "maximum": 3600},
        optional={"type": "boolean"},
    ),
    "oneOf": [{"required": ["command"]}, {"required": ["url"]}],
    "says": "needs either command or url",
}

NONE = _of()
KITS: Mapping[str, Schema] = {
    "ask_user": _of(absent={"enum": ["refuse", "reply", "pause"]}, reply=_TEXT),
    "delegate": _of(agents=_NAMES, max_depth=_whole(1)),
    "editor": _of(window=_whole(1), overlap=_whole(0)),
    "mcp": _of(
        ("servers",),
        servers={
            "type": "object",
            "minProperties": 1,
            "maxProperties": 20,
            "propertyNames": {
                "pattern": r"^[a-z][a-z0-9-]{0,23}\Z",
                "says": "has a name that is no name of a server: small letters, digits and -, at most 24",
            },
            "additionalProperties": _SERVER,
        },
    ),
}
LANGUAGES: Mapping[str, Schema] = {
    "tags": _of(
        tags={
            "type": "object",
            "propertyNames": {"pattern": r"^[A-Za-z_][\w-]*\Z", "says": "has a name that is no name of a tag"},
            "additionalProperties": _TEXT,
        }
    ),
}
MEMORIES: Mapping[str, Schema] = {
    "condensing": _of(
        threshold_tokens=_whole(500),
        threshold_messages={"type": ["integer", "null"], "minimum": 4},
        keep_first=_whole(0),
        keep_last=_whole(0),
        keep_share={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        min_shrink={"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        prompt_tokens={"type": ["integer", "null"], "minimum": 1},
    ),
    "recall": _of(path={"type": ["string", "null"], "minLength": 1}, run=_TEXT),
    "window": _of(
        limit=_whole(1), keep_first=_whole(0), step=_whole(1), limit_tokens={"type": ["integer", "null"], "minimum": 2000}
    ),
}
# Memories that others can stand over.
LAYERED = frozenset({"condensing", "recall"})
STUCK = _of(
    same_answer=_TIMES, same_error=_TIMES, monologue=_TIMES, alternating=_TIMES,
    patience=_whole(1), nudges=_whole(0), talking=_NAMES,
)  # fmt: skip


def _window(options: Mapping[str, Any]) -> str | None:
    limit, step = options.get("limit", 200), options.get("step", 1)
    return f"step is at most limit ({limit}), not {step}" if step > limit else None


def _editor(options: Mapping[str, Any]) -> str | None:
    window, overlap = options.get("window", 100), options.get("overlap", 2)
    return f"a window of {window} lines cannot overlap by {overlap}" if overlap >= window else None


# What holds between several options of one part; asked where each of them is well.
TOGETHER: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {"window": _window, "editor": _editor}
