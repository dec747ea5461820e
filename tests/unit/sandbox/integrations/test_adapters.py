"""What holds for every adapter, whether its framework is installed or not; what needs a framework is tried by ``make foreign``."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Module of the adapter: its extra, the framework's package, and the page.
ADAPTERS = {
    "deepagents": ("deepagents", "deepagents", "deepagents.md"),
    "inspect_ai": ("inspect", "inspect-ai", "inspect-ai.md"),
    "mini_swe_agent": ("mini", "mini-swe-agent", "mini-swe-agent.md"),
}


def test_each_has_an_extra_a_page_and_few_lines() -> None:
    files = {path.stem: path for path in (ROOT / "sandbox/integrations").glob("*.py") if path.stem != "__init__"}
    assert set(files) == set(ADAPTERS)
    for name, (extra, package, page) in ADAPTERS.items():
        requirement = PROJECT["optional-dependencies"][extra][0]
        assert requirement.startswith(package)
        assert "<" in requirement, "a framework changes its base classes"
        text = (ROOT / "docs/how-to/integrations" / page).read_text()
        assert f"gamebox[{extra}]" in text
        assert f"sandbox.integrations.{name}" in text
        assert len(files[name].read_text().splitlines()) <= 200


def test_a_backend_without_its_framework_names_the_extra() -> None:
    """The others are loaded by their frameworks alone."""
    program = "import sys; sys.modules['deepagents'] = None; import sandbox.integrations.deepagents"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'gamebox[deepagents]'" in ran.stderr


def test_inspect_finds_its_adapter() -> None:
    (found,) = [each for each in entry_points(group="inspect_ai") if each.name == "gamebox"]
    assert importlib.util.find_spec(found.value) is not None


@pytest.mark.parametrize("module", ["sandbox", "sandbox.client.environment", "agent"])
def test_no_framework_is_imported_with(module: str) -> None:
    program = f"import sys, {module}; print([n for n in sys.modules if n.startswith('sandbox.integrations')])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
