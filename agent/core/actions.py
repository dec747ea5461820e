"""Actions: what an agent can do. A name, a function, a description and a JSON schema that a model reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, overload

from .envelopes import text_of

if TYPE_CHECKING:  # a signature needs all of pydantic
    from collections.abc import Iterator

    from sandbox.environment.base import Environment

    from .functions import Signature

EMPTY_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
# The environment in which an action is carried out, for functions with a parameter for it.
_ENVIRONMENT: ContextVar[Environment | None] = ContextVar("environment", default=None)


class Action:
    """One discrete capability.

    ``function`` (or ``fn``, another spelling; giving both is an error) is called with the arguments as keywords. It may be
    a coroutine function. ``parameters`` is the JSON schema of the arguments. ``terminal`` ends the run once the action was
    carried out. ``metadata`` has effects in the environment: ``requires_approval`` (the approver is asked first),
    ``timeout_s`` (seconds the call may take) and ``idempotent`` (a failure may be retried). ``return_schema`` is the JSON
    schema of what the function returns; anything else becomes the failure ``invalid_result``.

    ``Action.of(function)`` derives name, description and parameters from a function. A subclass may set name, description,
    parameters, terminal, metadata and return_schema as class attributes and define ``execute``; it is then made without arguments.

    Raises ValueError if the name or the function is missing, and TypeError for an argument of the wrong type.
    """

    name: str = ""
    description: str = ""
    parameters: Mapping[str, Any] = EMPTY_SCHEMA
    terminal: bool = False
    metadata: Mapping[str, Any] = {}
    return_schema: Mapping[str, Any] | None = None
    function: Callable[..., Any] | None = None
    signature: Signature | None = None

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
        first: object = name
        if callable(first):
            raise TypeError(
                "The first argument of Action is its name. To make an action of a function alone, use Action.of(function)."
            )
        if function is not None and fn is not None:
            raise ValueError(f"Action {name!r} was given both function and fn: give one of them.")
        chosen = function if function is not None else fn
        values = {
            "name": name,
            "description": description,
            "parameters": parameters,
            "terminal": terminal,
            "metadata": metadata,
            "return_schema": return_schema,
            "function": chosen,
        }
        _check_types(name, values)
        for key, value in values.items():
            if value is not None:
                setattr(self, key, value)
        if not self.name:
            raise ValueError(f"{type(self).__name__} needs a name, got {self.name!r}.")
        if chosen is None and type(self).execute is Action.execute and self.function is None:
            raise ValueError(f"Action {self.name!r} needs a function, or a subclass that defines execute.")

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        terminal: bool = False,
        metadata: Mapping[str, Any] | None = None,
        return_schema: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make an action of ``function``.

        Its name is that of the function, its description the docstring, and ``parameters`` come from the annotations: any type that
        pydantic can write as a JSON schema. What the docstring says of an argument (Google, NumPy or Sphinx style), or the text in
        ``Annotated[TYPE, "text"]``, describes it to the model. The function gets values of the annotated types, such as a pydantic
        model or a date. A parameter annotated with ``Environment`` is not an argument: the function gets the environment there.

        Whatever is named here wins over the function's own; with ``parameters`` the function gets the JSON values unchanged. Raises
        TypeError, with the parameter's name, for a function whose arguments cannot be described.
        """
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"Action.of needs a function, not {_article(function)}.")
        found = name or getattr(function, "__name__", "")
        if not found or found == "<lambda>":
            raise TypeError(
                f"{function!r:.200} has no name that a model could call. Give one: Action.of(function, name=...)."
            )
        from .functions import description_of, signature_of

        signature = None if parameters is not None else signature_of(function)
        made = cls(
            found,
            function,
            description if description is not None else description_of(function),
            parameters if signature is None else signature.parameters,
            terminal,
            metadata=metadata,
            return_schema=return_schema,
        )
        made.signature = signature
        made.__doc__ = function.__doc__
        return made

    @property
    def fn(self) -> Callable[..., Any] | None:
        """``function``, under its other name."""
        return self.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it stands, without any check: a function under ``@action`` can still be called by a program."""
        if self.function is None:
            return self.execute(*args, **kwargs)
        return self.function(*args, **kwargs)

    def execute(self, /, **kwargs: Any) -> Any:
        """Call the function and return what it returns; a coroutine is awaited, on an event loop of another thread."""
        if self.function is None:
            raise ValueError(f"Action {self.name!r} has no function.")
        returned = self.function(**(kwargs if self.signature is None else self._converted(self.signature, kwargs)))
        if not inspect.isawaitable(returned):
            return returned
        from sandbox.environment.coroutines import run_awaitable

        return run_awaitable(returned)

    def _converted(self, signature: Signature, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them, with the environment if it has a parameter for it."""
        converted = signature.convert(self.name, values)
        if not signature.environment_arguments:
            return converted
        environment = _ENVIRONMENT.get()
        if environment is None:
            raise RuntimeError(f"{self.name} needs an environment, but was called without one.")
        return {**converted, **dict.fromkeys(signature.environment_arguments, environment)}

    def spec(self) -> dict[str, Any]:
        """Return what a prompt says about this action: name, description, parameters."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    def show(self, envelope: Mapping[str, Any]) -> str:
        """Return an envelope of this action as text for a model."""
        return text_of(envelope, tool=self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


@overload
def action(function: Callable[..., Any], /) -> Action: ...


@overload
def action(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    terminal: bool = False,
    metadata: Mapping[str, Any] | None = None,
    return_schema: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Action]: ...


def action(
    function: Callable[..., Any] | None = None, /, **options: Any
) -> Action | Callable[[Callable[..., Any]], Action]:
    """Turn the function below into an action, as ``Action.of`` does: ``@action``, or ``@action(terminal=True)`` with its options.

    The action can still be called like the function.
    """
    if function is not None:
        return Action.of(function, **options)
    return lambda below: Action.of(below, **options)


@contextmanager
def carried_out_in(environment: Environment) -> Iterator[None]:
    """Give ``environment`` to the functions of actions that have a parameter for it, while this context is active."""
    token = _ENVIRONMENT.set(environment)
    try:
        yield
    finally:
        _ENVIRONMENT.reset(token)


def _check_types(name: Any, values: Mapping[str, Any]) -> None:
    """Raise TypeError for the first argument of ``Action`` whose type is wrong."""
    wanted: dict[str, tuple[type, str]] = {
        "name": (str, "a text"),
        "description": (str, "a text"),
        "parameters": (Mapping, "a JSON schema, as a dict"),
        "terminal": (bool, "True or False"),
        "metadata": (Mapping, "a dict"),
        "return_schema": (Mapping, "a JSON schema, as a dict"),
    }
    for key, (kind, words) in wanted.items():
        if values[key] is not None and not isinstance(values[key], kind):
            raise TypeError(f"The {key} of action {name!r} must be {words}, not {_article(values[key])}.")
    if values["function"] is not None and not callable(values["function"]):
        raise TypeError(f"The function of action {name!r} cannot be called: {values['function']!r}.")


def _article(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r:.80}"
