"""Names of templates: ``name``, ``name:tag``, and either behind ``tenant/``."""

from __future__ import annotations

import re

from sandbox.client.http.codes import ProblemCode
from sandbox.frozen import dataclass
from sandbox.service.http.problems import Problem

DEFAULT_TAG = "default"
MOST_TAGS = 32
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class TemplateName:
    """A name as it was asked for. ``namespace`` and ``tag`` are None if it has none."""

    name: str
    tag: str | None = None
    namespace: str | None = None


def parse_name(text: str) -> TemplateName:
    """Return the parts of a name, whose case does not count. Raises Problem."""
    before, slash, rest = text.rpartition("/")
    name, colon, tag = rest.partition(":")
    name = name.lower()
    if not _NAME.fullmatch(name) or (colon and not _TAG.fullmatch(tag)) or (slash and not before):
        raise Problem(
            400,
            ProblemCode.invalid_body,
            f"{text[:200]!r} is not the name of a template.",
            "Use NAME or NAME:TAG, of up to 128 letters, digits, '.', '_' and '-' each.",
        )
    return TemplateName(name, tag if colon else None, before if slash else None)


def check_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags, each once. Raises Problem."""
    wrong = next((each for each in tags if not _TAG.fullmatch(each)), None)
    if wrong is not None or len(tags) > MOST_TAGS:
        what = f"{len(tags)} tags are too many" if wrong is None else f"{wrong[:200]!r} is not a tag"
        hint = f"Give up to {MOST_TAGS} tags, of up to 128 letters, digits, '.', '_' and '-' each."
        raise Problem(400, ProblemCode.invalid_body, f"{what}.", hint)
    return tuple(dict.fromkeys(tags))
