"""The files of the generated pages, and of the generated parts of others: what they should hold, and which differ."""

from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path

from agent import moved as agent_moved
from sandbox import moved as sandbox_moved

from . import api

ROOT = Path(__file__).parents[2]
API = ROOT / "docs/api"
ARCHITECTURE = ROOT / "docs/architecture.md"
CHANGELOG = ROOT / "CHANGELOG.md"
# Folders that the page on the architecture lists.
PACKAGES = ("sandbox", "agent")


def changed_pages(*, walk: bool) -> dict[str, str | None]:
    """Return by path, relative to the repository, the text that a page should have, for those that differ; None if it has to go."""
    wanted: dict[str, str | None] = {f"docs/api/{name}": text for name, text in api.pages().items()}
    for path in API.rglob("*.md"):
        wanted.setdefault(str(path.relative_to(ROOT)), None)
    page = _between(ARCHITECTURE.read_text(encoding="utf-8"), "folders", folders())
    if walk:
        from tests.walk import walk as ways

        page = _between(page, "walk", ways.page())
    wanted["docs/architecture.md"] = page
    wanted["docs/openapi.json"] = openapi()
    wanted["CHANGELOG.md"] = _between(CHANGELOG.read_text(encoding="utf-8"), "moved", moved())
    return {path: text for path, text in wanted.items() if text != _text(ROOT / path)}


def openapi() -> str:
    """Return the OpenAPI document of the service."""
    from sandbox.service.app import make_app, make_house
    from sandbox.service.openapi.document import openapi_document
    from sandbox.service.settings import read_settings
    from sandbox.service.store.database import Database

    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder) / "db")
        try:
            document = openapi_document(make_app(make_house(read_settings({"data": Path(folder)}), database)))
        finally:
            database.close()
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def folders() -> str:
    """Return a table of the folders of both packages, with the first sentence of each ``__init__``."""
    rows = ["| folder | what it is for |", "|---|---|"]
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("__init__.py")):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            sentence = " ".join(text.split("\n\n")[0].replace("``", "`").replace("|", "\\|").split())
            rows.append(f"| `{path.parent.relative_to(ROOT)}/` | {sentence} |")
    return "\n".join(rows) + "\n"


def moved() -> str:
    """Return a table of the module paths that still work and warn."""
    paths = {**sandbox_moved.MOVED, **agent_moved.MOVED}
    return "\n".join(["| old | new |", "|---|---|", *(f"| `{old}` | `{new}` |" for old, new in paths.items())]) + "\n"


def _between(page: str, name: str, text: str) -> str:
    """Return the page with ``text`` between its marks ``name``."""
    begin, end = f"<!-- {name}: begin, written by make docs -->\n", f"<!-- {name}: end -->\n"
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def write(pages: dict[str, str | None]) -> None:
    """Write pages, and delete those whose text is None."""
    for path, text in pages.items():
        if text is None:
            (ROOT / path).unlink()
        else:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
