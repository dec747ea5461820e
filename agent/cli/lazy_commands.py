"""Commands that are imported when they are used: ``gamebox --help`` needs only their first sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from importlib import import_module
from typing import Any

import typer
from typer.models import DefaultPlaceholder

from sandbox.frozen import dataclass

from .help import HelpfulGroup, keep_examples_whole
from .plain_values import keep_plain_values


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A function or group of commands at ``place``, as module:name. ``epilog`` is the name of its examples in that module.

    ``help`` is the first sentence of its help, which a test compares with its docstring.
    """

    place: str
    help: str
    epilog: str = "EPILOG"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """Import it and return it as a command of click."""
        module_name, _, attribute = self.place.partition(":")
        module = import_module(module_name)
        found = getattr(module, attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(rich_markup_mode=None, add_completion=False)
            found.command(name, epilog=getattr(module, self.epilog, None), context_settings=dict(self.settings))(function)
        else:
            cls: Any = found.info.cls
            if isinstance(cls, DefaultPlaceholder):  # of a package that does not know our help
                found.info.cls = HelpfulGroup
        keep_examples_whole(found)
        command = typer.main.get_command(found)
        command.name = name
        keep_plain_values(command)
        return command


class LazyCommands(dict[str, Any]):
    """The commands of a group by name; a lazy one is loaded when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if isinstance(command, LazyCommand):
            command = self[name] = command.load(name)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        """Return the command, or ``default`` for an unknown name."""
        if name not in self:
            return default
        return self[name]

    def values(self) -> Any:
        """Return all commands, loaded."""
        return [self[name] for name in self]

    def items(self) -> Any:
        """Return all names with their commands, loaded."""
        return [(name, self[name]) for name in self]

    def help_of(self, name: str) -> str:
        """Return the help of a command, or its first sentence if it has not been loaded."""
        command: Any = super().__getitem__(name)
        return str(command.help or "")
