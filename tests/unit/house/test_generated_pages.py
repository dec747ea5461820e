"""The generated pages of docs/api and tables say what the code says. ``make docs`` writes them anew."""

from __future__ import annotations

import pytest

from tests.pages import api
from tests.pages.files import changed_pages

# Signatures are worded differently by different versions of Python.
pytestmark = pytest.mark.exhaustive


def test_the_pages_of_the_api_are_those_of_the_code() -> None:
    assert not list(changed_pages(walk=False)), "run make docs, and commit what it writes"


def test_everything_public_is_on_its_page() -> None:
    pages = api.pages()
    for name in ("sandbox", "agent"):
        module = __import__(name)
        text = pages[f"{name}/{name}.md"]
        assert not [each for each in module.__all__ if f"## `{each}" not in text]
