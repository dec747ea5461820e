"""The browser over a service: by its client, and by MCP."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from sandbox import Failure, Limits, RemoteEnvironment
from tests.integration.service.test_mcp import call, connected
from tests.servers.gamebox_service import shared_service

from .conftest import GIB

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("browser")]
PAGE = "<!doctype html><title>Form</title><h1>Form</h1><button onclick=\"this.textContent='Sent'\">Send</button>"
PNG = b"\x89PNG\r\n\x1a\n"
SERVE = "python3 -m http.server 8000 --bind 127.0.0.1"


def test_the_client_gets_pages_steps_and_pictures(image: str, tmp_path: Path) -> None:
    service = shared_service()
    with RemoteEnvironment(image=image, limits=Limits(memory_bytes=GIB), url=service.url, api_key=service.key) as env:
        env.write("index.html", PAGE).unwrap()
        env.run(SERVE, background=True).unwrap()
        env.wait_for(port=8000, timeout_seconds=60).unwrap()
        page = env.browse("http://127.0.0.1:8000/", browser=True, timeout_seconds=60).unwrap()
        assert (page.title, page.browser) == ("Form", True)
        done = env.browse_interact({"action": "click", "target": "button"}, timeout_seconds=60).unwrap()
        assert any("Sent" in change for change in done.steps[0].changes)
        picture = env.screenshot(path="/tmp/form.png", timeout_seconds=60).unwrap()  # of the sandbox
        assert picture.image is not None
        data = base64.b64decode(picture.image["data"])
        assert data.startswith(PNG)
        env.download("/tmp/form.png", tmp_path / "form.png").unwrap()
        assert (tmp_path / "form.png").read_bytes() == data
        missing = env.browse_interact({"action": "click", "target": "#none"}, timeout_seconds=30)
        assert isinstance(missing, Failure)
        assert missing.code == "element_not_found"


def test_mcp_has_a_set_of_tools_for_pages(image: str) -> None:
    service = shared_service()

    async def main() -> Any:
        async with connected(service, f"?image={image}&memory_bytes={GIB}&tools=browser") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"browse", "browse_interact", "screenshot", "run", "write"} <= names
            await call(client, "write", path="index.html", content=PAGE)
            await call(client, "run", command=SERVE, background=True)
            await call(client, "wait_for", port=8000, timeout_seconds=40)
            opened = await call(client, "browse", url="http://127.0.0.1:8000/", browser=True, timeout_seconds=40)
            assert opened["result"]["title"] == "Form"
            done = await call(client, "browse_interact", steps=[{"action": "click", "target": "button"}])
            assert done["tool_executed"] is True
            return await client.call_tool("screenshot", {})

    shown = asyncio.run(main())
    (picture,) = [part for part in shown.content if part.type == "image"]
    assert base64.b64decode(picture.data).startswith(PNG)
    assert picture.mime_type == "image/png"
    assert shown.structured_content["result"]["path"].endswith(".png")
