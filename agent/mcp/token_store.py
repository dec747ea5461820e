"""The OAuth tokens of one server, in a file that only its user can read."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from agent.own_files import SECRET, OwnFileError, read_own_file
from sandbox.errors import ErrorCode, SandboxError
from sandbox.text.masking import LEAST_CHARS

from .token_file import token_file

MAX_FILE_BYTES = 256 << 10


def origin_of(url: str) -> str:
    """Return scheme, host and port of ``url``."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    return f"{parts.scheme}://{parts.hostname}:{port}"


class TokenStore:
    """Stores tokens and the client's registration for the SDK, for the server at ``url``.

    ``origins`` are the authorization servers that the user agreed to. The file has the mode 0600 in a folder of the mode 0700, and
    is replaced as a whole. Raises SandboxError ``invalid_configuration`` for a file that another user could have read or written.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.path = token_file(folder, url)
        self._data: dict[str, Any] = {"url": url, **self._read()}
        if self._data["url"] != url:
            raise _invalid(self.path, "it is that of another server")

    @property
    def origins(self) -> list[str]:
        """The origins of the authorization servers that the user agreed to."""
        return [str(each) for each in self._data.get("origins") or ()]

    @origins.setter
    def origins(self, origins: list[str]) -> None:
        self._write({"origins": origins})

    @property
    def redirect_port(self) -> int:
        """The port that the client registered for the end of a sign-in; 0 without a registration."""
        uris = (self._data.get("client") or {}).get("redirect_uris") or ["http://127.0.0.1:0/"]
        return urlsplit(str(uris[0])).port or 0

    @property
    def metadata(self) -> dict[str, Any] | None:
        """The metadata of the authorization server, by which tokens are refreshed."""
        return self._data.get("server")

    @property
    def resource(self) -> dict[str, Any] | None:
        """The metadata of the server that is signed in to."""
        return self._data.get("resource")

    def set_server(self, metadata: dict[str, Any] | None, resource: dict[str, Any] | None) -> None:
        """Store the metadata of the authorization server and of the server that is signed in to."""
        self._write({"server": metadata, "resource": resource})

    def secrets(self) -> list[str]:
        """Return the values that must not be shown."""
        found = [*(self._data.get("tokens") or {}).items(), *(self._data.get("client") or {}).items()]
        return [
            value for key, value in found if key in _SECRET and isinstance(value, str) and len(value) >= LEAST_CHARS
        ]

    @property
    def signed_in(self) -> bool:
        """Whether there are tokens."""
        return self._data.get("tokens") is not None

    def forget_tokens(self) -> None:
        """Remove the tokens, and keep the registration."""
        if self.signed_in:
            self._write({"tokens": None})

    def forget_client(self) -> None:
        """Remove the registration, and the tokens that it belongs to."""
        self._write({"client": None, "tokens": None})

    def delete(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens; what is left of their time is in ``expires_in``, in seconds."""
        tokens = self._data.get("tokens")
        if tokens is None:
            return None
        expires = self._data.get("expires_at")
        left = None if expires is None else max(int(expires - time.time()), 0)
        return OAuthToken.model_validate({**tokens, "expires_in": left})

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store the tokens."""
        expires = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self._write({"tokens": tokens.model_dump(mode="json", exclude_none=True), "expires_at": expires})

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registration of this client with the authorization server."""
        client = self._data.get("client")
        return None if client is None else OAuthClientInformationFull.model_validate(client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the registration."""
        self._write({"client": client_info.model_dump(mode="json", exclude_none=True)})

    def _read(self) -> dict[str, Any]:
        try:
            content = read_own_file(self.path, MAX_FILE_BYTES, SECRET)
        except OwnFileError as error:
            raise _invalid(self.path, f"it {error}") from error
        if content is None:
            return {}
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _invalid(self.path, "it is not JSON") from error
        if not isinstance(data, dict):
            raise _invalid(self.path, "it is not an object")
        return data

    def _write(self, changes: dict[str, Any]) -> None:
        self._data = {**self._data, **changes}
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.parent.chmod(0o700)
        partial = self.path.with_name(f".{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(partial, flags, 0o600), "w") as file:
                json.dump(self._data, file)
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)


_SECRET = {"access_token", "refresh_token", "client_secret", "registration_access_token"}


def _invalid(path: Path, why: str) -> SandboxError:
    return SandboxError(
        ErrorCode.invalid_configuration,
        f"The file with the tokens of an MCP server, {path}, is not used: {why}.",
        "Remove it, and sign in again: gamebox mcp login URL.",
    )
