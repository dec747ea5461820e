"""Whether a service sends spans, and where: the variables OTEL_* say so, as for agents."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sandbox import telemetry
from sandbox.errors import configuration_error

from .logs import log_event
from .tracing import Tracing

log = logging.getLogger(__name__)


@contextmanager
def exporting(environ: Mapping[str, str]) -> Iterator[Tracing | None]:
    """Yield what makes spans; None if no variable names an endpoint, or the extra ``otel`` is missing.

    What was recorded is sent when the block ends.
    Raises SandboxError ``invalid_configuration`` for a protocol that the exporter does not have.
    """
    if not telemetry.names_endpoint(environ) or telemetry.switched_off_by(environ) is not None:
        yield None
        return
    if not telemetry.is_installed():
        log.warning("a variable OTEL_EXPORTER_OTLP_… asks for spans, which need: pip install 'gamebox[otel]'")
        yield None
        return
    if (variable := telemetry.other_protocol(environ)) is not None:
        raise configuration_error(
            f"{variable} is {environ[variable]!r:.80}, and spans are sent as {telemetry.PROTOCOL} only.",
            f"Set {variable}={telemetry.PROTOCOL}, with the endpoint of that protocol, usually port 4318.",
        )
    provider = telemetry.make_provider(environ, "gamebox-service")
    log_event(log, logging.INFO, "spans are sent", to=telemetry.endpoint(environ))
    try:
        yield Tracing(provider)
    finally:
        telemetry.send_rest(provider)
