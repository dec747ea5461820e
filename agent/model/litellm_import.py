"""litellm, imported when a model is first used (it takes seconds), kept quiet and kept from calling anybody by itself."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import warnings
from contextlib import closing
from typing import Any

from sandbox.errors import ErrorCode

from .brain import ModelError
from .response import text_of_content

# Far above what any model writes, also when each character is escaped: a server must not fill the memory of the host.
MAX_REPLY_BYTES = 64 << 20
_loading = threading.Lock()


def load() -> Any:
    """Return litellm, quiet and without look-ups of its own: it would fetch its price list from the network on import.

    Safe in several threads: its modules import each other in circles, which two threads at once may leave half done. Its own
    warnings raise nothing, even where all warnings are errors. Raises ModelError ``setup_failed`` if it cannot be imported.
    """
    with _loading:
        return _loaded()


def _loaded() -> Any:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    looks_for_garbage = gc.isenabled()
    gc.disable()  # a fifth of the import would be the look for garbage: 2,000 of the 430,000 objects that it makes
    try:
        import litellm
    except ImportError as error:
        raise ModelError(
            ErrorCode.setup_failed,
            f"Models are called through the package litellm, which cannot be imported here: {error}.",
            f"Run: {sys.executable} -m pip install litellm. Sandboxes work without it.",
        ) from error
    finally:
        if looks_for_garbage:
            gc.enable()

    litellm.suppress_debug_info = True
    litellm.drop_params = True
    litellm.telemetry = False
    if litellm.client_session is None:
        _build_answers(litellm)
        litellm.client_session = _session()
    return litellm


def _build_answers(litellm: Any) -> None:
    """Have litellm build the classes of its answers and of their pieces now.

    That warns, and litellm silences it by a filter that it adds on import: where that filter is gone (pytest removes it after
    each test) and warnings are errors, every call would fail at its answer.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        litellm.ModelResponse(choices=None, usage={})
        types = litellm.types.utils
        types.ModelResponseStream(choices=[types.StreamingChoices(delta=types.Delta(content=""))])


def _session() -> Any:
    """An HTTP client that joins the text parts of chat replies; everything else passes unchanged.

    Some OpenAI-compatible servers send content in parts. Seen with litellm 1.106: its openai provider raises "Invalid response
    object" for a content that is a list, its mistral provider keeps the last part alone.
    """
    import httpx
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

    class JoiningTransport(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            if "application/json" not in response.headers.get("content-type", "") or response.status_code != 200:
                return response
            body = bytearray()
            with closing(response):
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > MAX_REPLY_BYTES:
                        raise httpx.TransportError("The reply does not end.", request=request)
            joined = _joined(body) or bytes(body)
            dropped = {"content-length", "content-encoding"}
            headers = [(k, v) for k, v in response.headers.multi_items() if k not in dropped]
            return httpx.Response(200, headers=headers, content=joined, extensions=response.extensions)

    return httpx.Client(transport=JoiningTransport(verify=get_ssl_configuration()), follow_redirects=True)


def _joined(body: bytearray) -> bytes | None:
    """The body with parts joined, or None if it has none."""
    try:
        data: Any = json.loads(body)
    except ValueError:
        return None
    choices = data.get("choices") if isinstance(data, dict) else None
    messages = [c.get("message") for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    in_parts = [m for m in messages if isinstance(m, dict) and isinstance(m.get("content"), list)]
    for message in in_parts:
        message["content"] = text_of_content(message["content"])
    return json.dumps(data).encode() if in_parts else None
