"""Traces of ``gamebox agent``, ``batch`` and ``runs resume``: the layers that an option and the variables OTEL_* ask for.

OpenTelemetry is imported only when a trace is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from agent.core.loop.layers import Layer
from sandbox import telemetry
from sandbox.cli.errors import bad_input


@contextmanager
def tracing(asked: bool | None, say: Callable[[str], None]) -> Iterator[tuple[Layer, ...]]:
    """Yield the layers that trace runs, none if traces are off. What they recorded is sent when the block ends.

    With ``asked`` None, traces are on if a variable names an endpoint and the extra is installed. OTEL_SDK_DISABLED=true and
    OTEL_TRACES_EXPORTER=none switch them off in any case. ``say`` prints a line for the user. Raises SandboxError
    ``invalid_configuration`` if traces are asked for and OpenTelemetry is not installed, and ``invalid_arguments`` for a
    protocol that the exporter does not have.
    """
    if not _is_on(asked, os.environ, say):
        yield ()
        return
    from agent.layers.tracing import Tracing

    provider = telemetry.make_provider(os.environ, "gamebox")
    say(f"spans of this run go to {telemetry.endpoint(os.environ)}")
    try:
        yield (Tracing(tracer_provider=provider),)
    finally:
        telemetry.send_rest(provider)


def _is_on(asked: bool | None, environ: Mapping[str, str], say: Callable[[str], None]) -> bool:
    if asked is False or (asked is None and not telemetry.names_endpoint(environ)):
        return False
    if (off := telemetry.switched_off_by(environ)) is not None:
        if asked:
            say(f"no spans are sent: {off}")
        return False
    if not telemetry.is_installed():
        if asked is None:
            return False
        from agent.layers.tracing import missing_extra

        raise missing_extra()
    if (variable := telemetry.other_protocol(environ)) is not None:
        protocol = telemetry.PROTOCOL
        raise bad_input(
            f"{variable} is {environ[variable]!r}, and gamebox sends spans as {protocol} only.",
            f"Set {variable}={protocol} with the endpoint of that protocol, usually port 4318; or add --no-otel.",
        )
    return True
