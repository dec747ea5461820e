"""Actions: what an agent can do. A name, a function, a description and a schema that a model reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .envelopes import text_of

EMPTY_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "required": []}


class Action:
    """One discrete capability.

    ``function`` (or ``fn``, another spelling; giving both is an error) is called with the arguments as keywords.
    ``parameters`` is the JSON schema of the arguments. ``terminal`` ends the run once the action was carried out.
    ``metadata`` has effects in the environment: ``requires_approval`` (the approver is asked first), ``timeout_s``
    (seconds the call may take) and ``idempotent`` (a failure may be retried). ``return_schema`` is the JSON schema of
    what the function returns; anything else becomes the failure ``invalid_result``.

    A subclass may set name, description, parameters, terminal, metadata and return_schema as class attributes and
    define ``execute``; it is then made without arguments.
    """

    name: str = ""
    description: str = ""
    parameters: Mapping[str, Any] = EMPTY_SCHEMA
    terminal: bool = False
    metadata: Mapping[str, Any] = {}
    return_schema: Mapping[str, Any] | None = None
    function: Callable[..., Any] | None = None

    def __init__(
        self,
        name: str | None = None,
        function: Callable[..., Any] | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        terminal: bool | None = None,
        *,
        fn: Callable[..., Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        return_schema: Mapping[str, Any] | None = None,
    ) -> None:
        if function is not None and fn is not None:
            raise ValueError(f"Action {name!r} was given both function and fn: give one of them.")
        chosen = function if function is not None else fn
        given = {
            "name": name, "description": description, "parameters": parameters, "terminal": terminal,
            "metadata": metadata, "return_schema": return_schema, "function": chosen,
        }  # fmt: skip
        for key, value in given.items():
            if value is not None:
                setattr(self, key, value)
        if not self.name:
            raise ValueError(f"{type(self).__name__} needs a name, got {self.name!r}.")
        if chosen is None and type(self).execute is Action.execute and self.function is None:
            raise ValueError(f"Action {self.name!r} needs a function, or a subclass that defines execute.")
        if chosen is not None and not callable(chosen):
            raise TypeError(f"The function of action {self.name!r} cannot be called: {chosen!r}.")

    @property
    def fn(self) -> Callable[..., Any] | None:
        """The same as ``function``."""
        return self.function

    def execute(self, /, **kwargs: Any) -> Any:
        """Call the function and return what it returns."""
        if self.function is None:
            raise ValueError(f"Action {self.name!r} has no function.")
        return self.function(**kwargs)

    def spec(self) -> dict[str, Any]:
        """What a prompt says of this action: name, description, parameters."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    def show(self, envelope: Mapping[str, Any]) -> str:
        """The envelope of this action as text for a model."""
        return text_of(envelope, tool=self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"
