"""Values of options that are what their parameters take already: they need no conversion, for which typer would load pydantic."""

from __future__ import annotations

from typing import Any


def keep_plain_values(command: Any) -> None:
    """Have the parameters of a command, or of those in a group, convert only values that need it.

    pydantic takes 60 ms of a processor to load, which can happen while the sandbox starts. A typer that converts in another
    way is left alone.
    """
    parameters_of = command.get_params

    def get_params(ctx: Any) -> Any:
        found = parameters_of(ctx)
        for parameter in found:
            if hasattr(parameter, "type_descriptor") and "get_runtime_param" not in vars(parameter):
                parameter.get_runtime_param = _Conversion(parameter).myself
        return found

    command.get_params = get_params
    for inner in getattr(command, "commands", {}).values():
        keep_plain_values(inner)


class _Conversion:
    """Stands for the conversion of one parameter, which is made when a value needs it."""

    def __init__(self, parameter: Any) -> None:
        self._make = parameter.get_runtime_param
        described = parameter.type_descriptor
        self._takes = None if described.is_path or described.is_ranged or described.is_file else described.annotation

    def myself(self) -> _Conversion:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as the command takes it. Raises typer's BadParameter."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        if self._takes is str and not many and _is_text(value):
            return value
        if self._takes == list[str] and many and isinstance(value, list | tuple) and all(map(_is_text, value)):
            return list(value)
        if self._takes is float and not many and type(value) is float:  # a default
            return value
        return self._make().coerce(value, param=param, ctx=ctx)


def _is_text(value: Any) -> bool:
    """Return whether it is a text that can be encoded: typer refuses others."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
