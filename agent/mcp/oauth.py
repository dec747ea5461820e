"""Signing in to a server at an address: OAuth's authorization code with PKCE, by the SDK's provider.

Which authorization server to use, and every address of it, is named by the server that is signed in to. The host calls only those
at the server's own origin and at origins that the user agreed to.
"""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata, OAuthMetadata, ProtectedResourceMetadata
from pydantic import AnyUrl, ValidationError

from sandbox.errors import ErrorCode, OperationError
from sandbox.text.masking import Mask, map_texts

from .messages import MAX_WORDS, Message, nonsense
from .token_store import TokenStore, origin_of

SIGN_IN_SECONDS = 300.0
# Of answers of an authorization server.
MAX_ANSWER_BYTES = 1 << 20
MAX_REQUEST_BYTES = 16 << 10
REQUEST_SECONDS = 10.0
CALLBACK = "/callback"


class SignIn:
    """The access token of one server for ``HttpWire``, refreshed when it expires.

    Without ``browser`` nobody is asked to sign in: a server that wants it is a failure. ``agree`` is asked whether an origin that
    the server names may be called. Tokens are stored in ``folder`` and masked in everything the server sends.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        browser: Callable[[str], None] | None = None,
        agree: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.store = TokenStore(folder, url)
        self._url = url
        self._browser = browser
        self._agree = agree
        self._state = ""
        self._mask_and_secrets: tuple[Mask, tuple[str, ...]] = Mask.of_stars(()), ()
        self._callbacks: asyncio.Queue[AuthorizationCodeResult | OperationError] = asyncio.Queue(1)
        metadata = OAuthClientMetadata(
            client_name="Gamebox", redirect_uris=[AnyUrl(self._redirect(self.store.redirect_port))]
        )
        self.auth = _Provider(url, metadata, self.store, self._open, self._called_back)
        self.auth.store = self.store
        self.hooks: dict[str, list[Callable[..., Any]]] = {"request": [self._check_origin], "response": [self._bound]}
        # Its log quotes answers of the authorization server, which may hold tokens; failures are raised as well.
        logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)

    def masked(self, message: Message) -> Message:
        """Return ``message`` without the tokens of this server."""
        mask = self._mask()
        masked: Message = map_texts(message, mask.text, mask.whole) if mask else message
        return masked

    def failure(self, error: Exception) -> OperationError:
        """Return the failure for an error of the SDK's provider."""
        words = self._mask().text(str(error))[:MAX_WORDS]
        if isinstance(error, ValidationError):
            words = "the authorization server sent an invalid answer"
        return OperationError(
            ErrorCode.connection_failed,
            f"Signing in to {self._url} failed: {words}",
            f"The user can sign in again: gamebox mcp login {self._url}",
        )

    def _mask(self) -> Mask:
        """Return the mask for the tokens as they are now; it is made once for each, which takes milliseconds."""
        secrets = tuple(self.store.secrets())
        if secrets != self._mask_and_secrets[1]:
            self._mask_and_secrets = Mask.of_stars(secrets), secrets
        return self._mask_and_secrets[0]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Wait on loopback for the browser to come back, within the context."""
        port = self.store.redirect_port
        try:
            server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=MAX_REQUEST_BYTES)
        except OSError:  # somebody else has the port now: this client registers again with another one
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_REQUEST_BYTES)
        bound = int(server.sockets[0].getsockname()[1])
        if bound != port:
            self.store.forget_client()
            self.auth.context.client_metadata.redirect_uris = [AnyUrl(self._redirect(bound))]
        async with server:
            yield

    @staticmethod
    def _redirect(port: int) -> str:
        return f"http://127.0.0.1:{port}{CALLBACK}"

    async def _open(self, address: str) -> None:
        if self._browser is None:
            raise OAuthFlowError("it asks the user to sign in")
        self._state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        await anyio.to_thread.run_sync(self._browser, address)

    async def _called_back(self) -> AuthorizationCodeResult:
        try:
            with anyio.fail_after(SIGN_IN_SECONDS):
                result = await self._callbacks.get()
        except TimeoutError:
            raise OAuthFlowError(f"nobody signed in within {SIGN_IN_SECONDS:g} seconds") from None
        if isinstance(result, OperationError):
            raise OAuthFlowError(result.message)
        return result

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of the browser. Only the one with the state of this sign-in counts."""
        try:
            with anyio.fail_after(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            words = self._take(head.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" "))
            status = "200 OK" if words else "404 Not Found"
            body = f"<!doctype html><meta charset=utf-8><title>Gamebox</title><p>{html.escape(words or 'Not found.')}".encode()
            head_out = f"HTTP/1.1 {status}\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(head_out.encode() + body)
            await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whatever called, it was not the browser of this sign-in
        finally:
            writer.close()

    def _take(self, request: Sequence[str]) -> str:
        """Take the result of a sign-in from a request line, and return the words for the user; empty for any other request."""
        target = urlsplit(request[1]) if len(request) == 3 and request[0] == "GET" else None
        if target is None or target.path != CALLBACK or not self._state or self._callbacks.full():
            return ""
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        if query.get("state") != self._state:
            return ""
        if "code" in query:
            self._callbacks.put_nowait(
                AuthorizationCodeResult(code=query["code"], state=query["state"], iss=query.get("iss"))
            )
            return "You are signed in, and can close this page."
        why = f"{query.get('error', 'no code')[:100]} {query.get('error_description', '')[:300]}".strip()
        self._callbacks.put_nowait(OperationError(ErrorCode.connection_failed, f"it was refused: {why}"))
        return f"The sign-in was refused: {why}"

    # --- what every request and response of the client passes ----------------------------
    async def _check_origin(self, request: httpx2.Request) -> None:
        """Raise OperationError for an origin that the user did not agree to."""
        origin = origin_of(str(request.url))
        allowed = {origin_of(self._url), *self.store.origins}
        if origin in allowed:
            return
        if self._browser is not None and await anyio.to_thread.run_sync(self._agree, origin):
            self.store.origins = [*self.store.origins, origin]
            return
        raise OperationError(
            ErrorCode.invalid_configuration,
            f"The MCP server at {self._url} wants this host to sign in at {origin}, which the user has not named.",
            f"If you trust it: gamebox mcp login {self._url} --authorization-server {origin}",
        )

    async def _bound(self, response: httpx2.Response) -> None:
        """Limit what is read of an answer that the provider reads whole. Raises OperationError for a compressed one."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise nonsense("a compressed response, which was not requested")
        if str(response.request.url) != self._url:
            response.stream = _Bounded(response)


def sign_in(
    folder: Path, url: str, *, browser: Callable[[str], None], agree: Callable[[str], bool], origins: Sequence[str] = ()
) -> None:
    """Sign in to the server at ``url``, and store its tokens in ``folder``.

    ``browser`` is called with the address at which the user signs in; ``origins`` are authorization servers that the user named,
    and ``agree`` is asked about any other. Waits for the user for at most ``SIGN_IN_SECONDS``. Raises OperationError.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise OperationError(
            ErrorCode.invalid_url,
            f"{url[:200]} is not an https address: its token could be read on the way.",
            "Use https://...",
        )
    signing = SignIn(folder, url, browser=browser, agree=agree)
    signing.store.forget_tokens()
    signing.store.origins = sorted({*signing.store.origins, *map(origin_of, origins)})
    anyio.run(_sign_in, signing, url)


async def _sign_in(signing: SignIn, url: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}
    headers = {"accept": "application/json, text/event-stream", "accept-encoding": "identity"}
    timeout = httpx2.Timeout(REQUEST_SECONDS)
    try:
        async with (
            signing.listening(),
            httpx2.AsyncClient(auth=signing.auth, event_hooks=signing.hooks, timeout=timeout) as client,
            client.stream("POST", url, json=message, headers=headers) as response,
        ):
            status = response.status_code
    except OperationError:
        raise
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        words = f"{url} cannot be reached: {type(error).__name__}: {error}"[:500]
        raise OperationError(ErrorCode.connection_failed, words, "Check whether the server is running.") from error
    except (OAuthFlowError, ValueError) as error:  # pydantic's are ValueErrors
        raise signing.failure(error) from None
    if not signing.store.signed_in:
        words = f"The server at {url} did not ask for a sign-in (status {status})."
        raise OperationError(ErrorCode.connection_failed, words, "Use it without one, or with a header (--mcp-header).")


class _Provider(OAuthClientProvider):
    """Remembers where tokens are refreshed: a new process would otherwise send the refresh token to the server itself."""

    store: TokenStore

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """See the base class, which holds a lock until the answer begins: calls at the same time would wait for each other."""
        if self._initialized and self.context.is_token_valid():
            self._add_auth_header(request)
            response = yield request
            if response.status_code not in (401, 403):
                return
        async with aclosing(super().async_auth_flow(request)) as flow:
            try:
                outgoing = await anext(flow)
                while True:
                    response = yield outgoing
                    outgoing = await flow.asend(response)
            except StopAsyncIteration:
                return

    async def _initialize(self) -> None:
        await super()._initialize()
        store, context = self.store, self.context
        if context.oauth_metadata is None and store.metadata is not None:
            context.oauth_metadata = OAuthMetadata.model_validate(store.metadata)
        if context.protected_resource_metadata is None and store.resource is not None:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(store.resource)
        if context.current_tokens is not None:
            context.update_token_expiry(context.current_tokens)

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await super()._handle_token_response(response)
        store, context = self.store, self.context
        server, resource = context.oauth_metadata, context.protected_resource_metadata
        store.set_server(
            None if server is None else server.model_dump(mode="json", exclude_none=True),
            None if resource is None else resource.model_dump(mode="json", exclude_none=True),
        )


class _Bounded(httpx2.AsyncByteStream):
    """A body of at most ``MAX_ANSWER_BYTES``."""

    def __init__(self, response: httpx2.Response) -> None:
        self._stream = response.stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        if not isinstance(self._stream, httpx2.AsyncByteStream):
            raise TypeError("a response of an asynchronous client has another stream")
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                raise nonsense(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB to a sign-in")
            yield piece

    async def aclose(self) -> None:
        if isinstance(self._stream, httpx2.AsyncByteStream):
            await self._stream.aclose()
