"""Turn a Dockerfile into a plan. What cannot run here is refused with its line."""

from __future__ import annotations

from collections.abc import Mapping

from .steps import Plan


def parse_dockerfile(text: str, *, archive: str = "", arguments: Mapping[str, str] | None = None) -> Plan:
    """Return the plan of a Dockerfile with one stage.

    ``archive`` is the archive of the build context, ``arguments`` are values for its ARGs. Raises SandboxError
    ``invalid_arguments`` with the line: several stages, ADD of a URL, HEREDOC, options of RUN, and whatever is unknown.
    """
    raise NotImplementedError
