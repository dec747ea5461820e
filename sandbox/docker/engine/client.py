"""Find a Docker Engine, connect to it, and turn docker-py's exceptions into SandboxError. Nothing else does that."""

from __future__ import annotations

import contextlib
import errno
import functools
import http.client
import os
import re
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import docker.errors
import requests.exceptions
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnectionPool

from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

from . import over_ssh
from .shared import Shared

_POOL_SIZE = 32
"""Connections kept open to one engine: as many threads can call at once without opening new ones."""

_SSH = "ssh://"
_UNIX_URL = "http+docker://localhost"
"""docker-py's URL for an engine behind a socket of this host."""

_OLDEST_API = "1.41"
"""The API of Engine 20.10, the oldest one supported."""

_API_VERSION = re.compile(r"\d{1,3}\.\d{1,3}")

_START_HINT = (
    "Start Docker, or name an engine that runs with DOCKER_HOST; "
    "`gamebox setup` as root on Debian or Ubuntu installs and starts one."
)
_PERMISSION_HINT = (
    "Run as root or as a member of the group that owns the socket (usually docker), "
    "or set DOCKER_HOST to an engine of your own."
)

_PODMAN_HEADER = "Libpod-API-Version"
_podmans: weakref.WeakSet[docker.DockerClient] = weakref.WeakSet()
_clients: Shared[tuple[str, int, int], docker.DockerClient] = Shared()


@dataclass(frozen=True)
class EngineFacts:
    """An engine and its host, as the engine reports them."""

    version: str
    api_version: str
    operating_system: str
    architecture: str
    kernel: str
    cgroup_version: int
    storage_driver: str
    rootless: bool
    memory_bytes: int
    cpus: int


def engine_address() -> str:
    """Return the engine's address: DOCKER_HOST, else the current docker context, else the default or the rootless socket."""
    named = os.environ.get("DOCKER_HOST")
    if named:
        return named
    context = docker.ContextAPI.get_current_context()
    if context.Name != "default" and context.Host:
        return str(context.Host)
    own = Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"), "docker.sock")
    system = Path("/var/run/docker.sock")
    return f"unix://{own if own.exists() and not system.exists() else system}"


def connect(timeout_seconds: int = 60, address: str | None = None) -> docker.DockerClient:
    """Return a client of the engine at ``address``, by default `engine_address()`, made once per process and timeout.

    ``timeout_seconds`` bounds every read from the engine. Raises SandboxError: engine_unavailable,
    engine_permission_denied, engine_timeout, invalid_configuration.
    """
    address = address or engine_address()
    key = (address, timeout_seconds, os.getpid())  # a fork must not share sockets with its parent

    def make() -> docker.DockerClient:
        with translated():
            return _new_client(address, timeout_seconds)

    return _clients.obtain(key, make)


def _new_client(address: str, timeout_seconds: int) -> docker.DockerClient:
    """Return a client for the engine's own API version. Leaves no connection open if that fails."""
    if address.startswith(_SSH) and (why := over_ssh.explain(address)):
        raise SandboxError(
            ErrorCode.engine_unavailable,
            f"No Docker Engine answers at {address}: {why}.",
            "See whether `ssh` reaches that host without a question, and `docker system dial-stdio` works there.",
            retryable=True,
        )
    served, podman = _ping(address, timeout_seconds)
    if not served:
        first = _client(address, timeout_seconds, _OLDEST_API)
        try:
            said = first.api.version(api_version=False)
        finally:
            first.close()
        served = str(said["ApiVersion"])
        podman = any(str(part.get("Name", "")).startswith("Podman") for part in said.get("Components") or [])
    made = _client(address, timeout_seconds, served)
    if podman:
        _podmans.add(made)
    return made


def is_podman(client: docker.DockerClient) -> bool:
    """Return whether the engine of a client that `connect` made is Podman, which does some things otherwise or not at all."""
    return client in _podmans


def _ping(address: str, timeout_seconds: int) -> tuple[str, bool]:
    """Return the API version of the engine behind a local socket, and whether it is Podman.

    The version is "" for another address or an engine that does not say. Its version page would run two programs for the answer,
    20 ms. The OSError of a socket says why it fails, which docker-py's error does not.
    """
    if not address.startswith("unix://"):
        return "", False
    with contextlib.closing(http.client.HTTPConnection("localhost")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout_seconds)
        connection.sock.connect(address.removeprefix("unix://"))
        try:
            connection.request("GET", "/_ping")
            answer = connection.getresponse()
        except http.client.HTTPException:
            return "", False
        served, podman = answer.getheader("Api-Version") or "", answer.getheader(_PODMAN_HEADER) is not None
    return (served if _API_VERSION.fullmatch(served) else ""), podman


def _client(address: str, timeout_seconds: int, version: str) -> docker.DockerClient:
    """Return a client without asking the engine anything."""
    if address.startswith(_SSH):  # docker-py would need paramiko for it: it speaks to a socket, in whose place is ssh
        made = docker.DockerClient(base_url="unix:///ssh", version=version, timeout=timeout_seconds)
        return _equipped(made, OverSsh(address, timeout_seconds, max_pool_size=_POOL_SIZE), timeout_seconds)
    try:
        if os.environ.get("DOCKER_HOST") == address:
            # Reads DOCKER_TLS_VERIFY and DOCKER_CERT_PATH as well.
            made = docker.DockerClient.from_env(version=version, timeout=timeout_seconds, max_pool_size=_POOL_SIZE)
        else:
            context = docker.ContextAPI.get_current_context()
            tls = context.TLSConfig if context.Name != "default" else None
            made = docker.DockerClient(
                base_url=address, version=version, timeout=timeout_seconds, tls=tls or False, max_pool_size=_POOL_SIZE
            )
    except docker.errors.TLSParameterError as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The TLS settings for the engine at {address} do not work: {error.msg}.",
            "Check DOCKER_TLS_VERIFY and DOCKER_CERT_PATH, or the docker context in use.",
        ) from error
    pool = None
    if made.api.base_url == _UNIX_URL:
        pool = OnePool(address.removeprefix("unix://"), timeout_seconds, max_pool_size=_POOL_SIZE)
    return _equipped(made, pool, timeout_seconds)


def _equipped(made: docker.DockerClient, pool: OnePool | None, timeout_seconds: int) -> docker.DockerClient:
    """Give a client its pool of connections, and every request a timeout."""
    if pool is not None:
        made.api.mount(_UNIX_URL, pool)
        # A socket has no proxy and no password in ~/.netrc; requests would look for them at each request, 0.3 ms.
        made.api.trust_env = False
    # docker-py gives its timeout to every request except those of attach, which would wait for ever.
    # And without ``verify`` requests takes REQUESTS_CA_BUNDLE, if that is set, for the authority of the engine's certificate.
    defaults = {"timeout": timeout_seconds, "verify": made.api.verify}
    made.api.request = functools.partial(_request_with, made.api.request, defaults)  # type: ignore[method-assign]
    return made


class OnePool(UnixHTTPAdapter):
    """Keeps one pool of connections to the engine's socket.

    docker-py keeps a pool for each requested URL. It has room for 25, and closes the oldest for the next one even while another
    thread uses it, which then fails with an AttributeError.
    """

    pool_type = UnixHTTPConnectionPool

    def get_connection(self, url: str | bytes, _proxies: Mapping[str, str] | None = None) -> UnixHTTPConnectionPool:
        """Return the pool for a request to ``url``: a new one for a request that takes its connection over."""
        if urlsplit(str(url)).path.endswith(("/attach", "/events")):
            return self.pool_type(_UNIX_URL, self.socket_path, self.timeout, maxsize=1)
        with self.pools.lock:
            pool: UnixHTTPConnectionPool | None = self.pools.get(_UNIX_URL)
            if pool is None:
                pool = self.pools[_UNIX_URL] = self.pool_type(
                    _UNIX_URL, self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
        return pool


class OverSsh(OnePool):
    """The same through ssh: ``socket_path`` is the engine's address."""

    pool_type = over_ssh.SshPool

    def __init__(self, address: str, timeout_seconds: int, *, max_pool_size: int) -> None:
        super().__init__("/", timeout_seconds, max_pool_size=max_pool_size)
        self.socket_path = address


def _request_with(request: Callable[..., Any], defaults: Mapping[str, Any], *args: Any, **options: Any) -> Any:
    return request(*args, **{**defaults, **options})


def describe(client: docker.DockerClient) -> EngineFacts:
    """Ask the engine about itself, in two calls. Raises what `translated` raises."""
    with translated():
        info, version = client.info(), client.version()
    return EngineFacts(
        version=version["Version"],
        api_version=version["ApiVersion"],
        operating_system=info.get("OperatingSystem", ""),
        architecture=info.get("Architecture", ""),
        kernel=info.get("KernelVersion", ""),
        cgroup_version=int(info.get("CgroupVersion") or 1),
        storage_driver=info.get("Driver", ""),
        rootless="name=rootless" in (info.get("SecurityOptions") or []),
        memory_bytes=int(info.get("MemTotal", 0)),
        cpus=int(info.get("NCPU", 0)),
    )


def is_local(client: docker.DockerClient) -> bool:
    """Return whether the engine is reached through a socket of this host (its kernel may still be a virtual machine's)."""
    address = str(client.api.base_url)
    if isinstance(client.api.adapters.get(_UNIX_URL), OverSsh):
        return False
    return address.startswith("http+docker://") or urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")


@contextmanager
def translated() -> Iterator[None]:
    """Turn every exception of docker-py or its HTTP library in the block into a SandboxError."""
    try:
        yield
    except docker.errors.ImageNotFound as error:
        raise image_not_found(_named_image(error)) from error
    except docker.errors.APIError as error:
        raise _error_in_answer(error) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        raise _error_without_answer(error) from error


def image_not_found(name: str) -> SandboxError:
    """Return the error for an image that this engine does not have. Nothing is pulled without a request for it."""
    return SandboxError(
        ErrorCode.image_not_found,
        f"The image {name!r} is not on this engine.",
        f"Pull it with --pull (in Python: pull=True) or `docker pull {name}`, build it, or use gamebox/base."
        if name
        else "Get it with `docker pull`.",
    )


def _named_image(error: docker.errors.APIError) -> str:
    found = re.search(r"[Nn]o such image: (\S+)", str(error.explanation or ""))
    return found.group(1).rstrip("\")'") if found else ""


def _error_in_answer(error: docker.errors.APIError) -> SandboxError:
    """Return the error for an answer with an error status."""
    reason = str(error.explanation or error).strip()
    lowered = reason.lower()
    if "no space left on device" in lowered or "disk quota exceeded" in lowered:
        return SandboxError(
            ErrorCode.host_disk_full,
            f"The engine has no disk space left: {reason}.",
            "Free some on the engine's disk, for example with `docker image prune` and `docker container prune`.",
        )
    if "runtime pause failed" in lowered:
        return SandboxError(
            ErrorCode.engine_error,
            f"The engine could not pause the container: {reason}.",
            "Try again: processes that begin and end meanwhile can prevent it.",
            retryable=True,
        )
    if any(
        mark in lowered
        for mark in ("oci runtime", "oci permission", "failed to create shim", "failed to create task", "containerd-shim")
    ):
        return SandboxError(
            ErrorCode.start_failed,
            f"The engine could not start the container: {reason}.",
            "Check the image, its architecture and the limits; `gamebox doctor` says what this engine supports.",
        )
    status = error.status_code
    if status == 409:
        return SandboxError(
            ErrorCode.engine_error,
            f"The engine refuses because of what is there already: {reason}.",
            "The name is taken or the container is in the wrong state; see `docker ps -a`.",
            retryable=True,
        )
    if status == 400:
        return SandboxError(
            ErrorCode.invalid_configuration,
            f"The engine does not accept the request: {reason}.",
            "Correct the image, limits or options it names.",
        )
    if status == 403:
        return SandboxError(ErrorCode.engine_permission_denied, f"The engine refused: {reason}.", _PERMISSION_HINT)
    return SandboxError(
        ErrorCode.engine_error,
        f"The engine answered with an error ({status}): {reason}.",
        "See the engine's log (journalctl -u docker) for the cause.",
        retryable=bool(status and status >= 500),
    )


def _error_without_answer(error: Exception) -> SandboxError:
    """Return the error for an engine that did not answer: missing, forbidden or silent."""
    address = engine_address()
    inner = _root_cause(error)
    if (
        isinstance(error, requests.exceptions.Timeout)
        or isinstance(inner, TimeoutError)
        or "Read timed out" in str(error)
    ):
        return SandboxError(
            ErrorCode.engine_timeout,
            f"The Docker Engine at {address} did not answer in time.",
            "What was asked may still be carried out. See whether `docker info` answers, then try again.",
            retryable=True,
            effects="unknown",
        )
    if isinstance(inner, PermissionError) or "Permission denied" in str(error):
        return SandboxError(
            ErrorCode.engine_permission_denied,
            f"This user (uid {os.getuid()}) may not speak to the Docker Engine at {address}.",
            _PERMISSION_HINT,
        )
    if isinstance(inner, OSError) and inner.errno in (errno.ENOSPC, errno.EDQUOT):
        return SandboxError(
            ErrorCode.host_disk_full, f"This host has no disk space left: {inner}.", "Free some and try again."
        )
    return SandboxError(
        ErrorCode.engine_unavailable, f"No Docker Engine answers at {address}: {inner}.", _START_HINT, retryable=True
    )


def is_missing(error: BaseException | None) -> bool:
    """Return whether an engine's error says that there is no such container: Podman says so with 500, while it is being removed."""
    if isinstance(error, docker.errors.APIError) and error.status_code == 500:
        return "no such cont" in str(error.explanation or "").lower()
    return isinstance(error, docker.errors.NotFound)


def _root_cause(error: BaseException) -> BaseException:
    """Return the innermost exception, which docker-py and urllib3 keep in ``args``, in ``reason`` or as the cause."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        held = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        deeper = next((part for part in held if isinstance(part, BaseException) and id(part) not in seen), None)
        if deeper is None:
            return error
        error = deeper
    return error
