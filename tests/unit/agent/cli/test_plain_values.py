"""Values that need no conversion are what typer makes of them, and pydantic is not loaded for them."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from agent.cli.plain_values import keep_plain_values

seen: list[dict[str, Any]] = []


OPTIONS: dict[str, tuple[Any, Any]] = {
    "words": (list[str], typer.Argument(...)),
    "text": (str, typer.Option("a default")),
    "maybe": (str | None, typer.Option(None)),
    "seconds": (float, typer.Option(120.0)),
    "count": (int, typer.Option(3, min=1, max=5)),
    "flag": (bool, typer.Option(False, "--flag/--no-flag")),
    "many": (list[str], typer.Option([], "--many", "-m")),
    "folder": (Path | None, typer.Option(None)),
}


def command(**values: Any) -> None:
    """Note what it was called with."""
    seen.append(values)


command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in OPTIONS.items()
    ]
)
command.__annotations__ = {name: kind for name, (kind, _) in OPTIONS.items()}


def made() -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typer.main.get_command(app)


@pytest.mark.parametrize(
    "arguments",
    [
        ["a"],
        ["a", "b", "--text", "", "--maybe", "x", "--flag", "-m", "1", "-m", "2"],
        ["a", "--seconds", "2.5", "--count", "5", "--folder", "/tmp"],
        ["a", "--seconds", "two"],
        ["a", "--count", "9"],
        ["a", "--no-flag", "--many"],
        ["\udcff", "--text", "\udcff"],
        [],
    ],
)
def test_a_command_gets_what_typer_makes_of_its_arguments(arguments: list[str]) -> None:
    plain, keeping = made(), made()
    keep_plain_values(keeping)
    first, second = outcome(plain, arguments), outcome(keeping, arguments)
    assert first == second
    assert [type(value) for value in first.values()] == [type(value) for value in second.values()]


def outcome(command: Any, arguments: list[str]) -> dict[str, Any]:
    """Return what the command was called with, or how its arguments were refused."""
    seen.clear()
    try:
        command.main(arguments, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - typer has several
        return {"refused": getattr(error, "format_message", error.__str__)()}
    return seen.pop()


def test_a_command_with_plain_options_loads_no_pydantic() -> None:
    code = (
        "import sys, sandbox.cli.run as run\n"
        "def made(*args, **options): print('pydantic' in sys.modules); raise SystemExit\n"
        "run.sandbox_of = made\n"
        "from agent.cli.app import main; main(['run', '--name', 'work', '-e', 'A=b', '--', 'true'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
