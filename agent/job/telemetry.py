"""Traces of ``gamebox agent``, ``batch`` and ``runs resume``: the layers that an option and the variables OTEL_* ask for.

OpenTelemetry is imported only when a trace is made.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from agent.core.loop.layers import Layer
from sandbox.cli.errors import bad_input

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
# Where the exporter sends spans if no variable names a place.
_DEFAULT_ENDPOINT = "http://localhost:4318"
# How long the end of a command waits for a collector.
FLUSH_SECONDS = 5.0


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

    provider = _provider()
    say(f"spans of this run go to {_endpoint(os.environ)}")
    try:
        yield (Tracing(tracer_provider=provider),)
    finally:
        _send_rest(provider)


def _is_on(asked: bool | None, environ: Mapping[str, str], say: Callable[[str], None]) -> bool:
    named = next((name for name in ENDPOINTS if environ.get(name, "").strip()), None)
    if asked is False or (asked is None and named is None):
        return False
    for variable, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        if environ.get(variable, "").strip().lower() == value:
            if asked:
                say(f"no spans are sent: {variable} is {value}")
            return False
    if not _is_installed():
        if asked is None:
            return False
        from agent.layers.tracing import missing_extra

        raise missing_extra()
    _check_protocol(environ)
    return True


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def _check_protocol(environ: Mapping[str, str]) -> None:
    variable = next((name for name in _PROTOCOLS if environ.get(name, "").strip()), None)
    if variable is not None and environ[variable].strip().lower() != _PROTOCOL:
        raise bad_input(
            f"{variable} is {environ[variable]!r}, and gamebox sends spans as {_PROTOCOL} only.",
            f"Set {variable}={_PROTOCOL} with the endpoint of that protocol, usually port 4318; or add --no-otel.",
        )


def _send_rest(provider: TracerProvider) -> None:
    """Send what is left, and give up after FLUSH_SECONDS: the timeouts of the SDK are not observed while it retries."""
    sender = threading.Thread(target=provider.shutdown, name="gamebox-spans", daemon=True)
    sender.start()
    sender.join(FLUSH_SECONDS)


def _provider() -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    service = {} if _names_service(os.environ) else {"service.name": "gamebox"}
    resource = Resource.create({**service, "service.version": version("gamebox")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _names_service(environ: Mapping[str, str]) -> bool:
    named = (pair.partition("=")[0].strip() for pair in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return bool(environ.get("OTEL_SERVICE_NAME")) or "service.name" in named


def _endpoint(environ: Mapping[str, str]) -> str:
    """The endpoint without a user and password in it."""
    from urllib.parse import urlsplit

    text = next((value for name in ENDPOINTS if (value := environ.get(name, "").strip())), _DEFAULT_ENDPOINT)
    parts = urlsplit(text)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
