"""Where spans are sent, as the variables OTEL_* say. OpenTelemetry (extra ``otel``) is imported only when a provider is made."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
# Where the exporter sends spans if no variable names a place.
_DEFAULT_ENDPOINT = "http://localhost:4318"
# How long the end of a process waits for a collector.
FLUSH_SECONDS = 5.0


def is_installed() -> bool:
    """Return whether spans can be made and sent."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def names_endpoint(environ: Mapping[str, str]) -> bool:
    """Return whether a variable says where spans go."""
    return any(environ.get(name, "").strip() for name in ENDPOINTS)


def switched_off_by(environ: Mapping[str, str]) -> str | None:
    """Return the variable and value that switch spans off in any case, as NAME is VALUE; None if none does."""
    for variable, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        if environ.get(variable, "").strip().lower() == value:
            return f"{variable} is {value}"
    return None


def other_protocol(environ: Mapping[str, str]) -> str | None:
    """Return the variable that asks for a protocol that the exporter does not have; None if none does."""
    variable = next((name for name in PROTOCOLS if environ.get(name, "").strip()), None)
    return variable if variable is not None and environ[variable].strip().lower() != PROTOCOL else None


def make_provider(environ: Mapping[str, str], service: str) -> TracerProvider:
    """Return a provider that sends its spans in the background; ``service`` is its name unless a variable has one."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {} if _names_service(environ) else {"service.name": service}
    resource = Resource.create({**named, "service.version": version("gamebox")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def send_rest(provider: TracerProvider) -> None:
    """Send what is left, and give up after FLUSH_SECONDS: the timeouts of the SDK are not observed while it retries."""
    sender = threading.Thread(target=provider.shutdown, name="gamebox-spans", daemon=True)
    sender.start()
    sender.join(FLUSH_SECONDS)


def endpoint(environ: Mapping[str, str]) -> str:
    """Return where spans go, without a user and password in it."""
    text = next((value for name in ENDPOINTS if (value := environ.get(name, "").strip())), _DEFAULT_ENDPOINT)
    parts = urlsplit(text)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _names_service(environ: Mapping[str, str]) -> bool:
    named = (pair.partition("=")[0].strip() for pair in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return bool(environ.get("OTEL_SERVICE_NAME")) or "service.name" in named
