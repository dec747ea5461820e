"""The arguments of the methods on the state of the files, as types: their names and defaults are those of the methods."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from sandbox.operations.wire import STATE_METHODS
from sandbox.state.methods import StateMethods

# Arguments that are a path of the host.
REFUSED = frozenset({"to"})
_TYPES: dict[str, Any] = {
    "id": str,
    "name": str | None,
    "since": str | None,
    "leftovers": bool,
    "kill": bool,
    "max_changes": Annotated[int, Field(ge=0)],
}


def _model(method: str) -> type[BaseModel]:
    given = inspect.signature(getattr(StateMethods, method)).parameters
    fields: Any = {
        name: (_TYPES[name], ... if each.default is each.empty else each.default)
        for name, each in given.items()
        if name != "self" and name not in REFUSED
    }
    made: type[BaseModel] = create_model(
        "".join(word.capitalize() for word in method.split("_")),
        __config__=ConfigDict(extra="forbid", strict=True),
        __doc__=inspect.getdoc(getattr(StateMethods, method)),
        **fields,
    )
    return made


STATE_ARGUMENTS: Mapping[str, type[BaseModel]] = {method: _model(method) for method in STATE_METHODS}


def state_problem(method: str, args: Mapping[str, Any]) -> str | None:
    """Return why the arguments do not fit the method, in one sentence, or None if they do."""
    try:
        STATE_ARGUMENTS[method].model_validate(dict(args))
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc']))[:80]}: {each['msg'][:200]}"
            for each in error.errors(include_url=False, include_input=False)[:5]
        ]
        return f"The arguments of {method} do not fit: {'; '.join(problems)}."
    return None
