"""Mistakes of a calling program, as the exceptions that Python has for them: wrong types of arguments and unknown option names.

The methods of an environment raise these. ``execute`` and ``execute_action`` carry out what a model asks for, and answer with
the failure ``invalid_arguments`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from sandbox import operations as op
from sandbox.argument_types import check_types
from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode, SandboxError
from sandbox.messages import arguments as argument_words
from sandbox.pipe.watching import CancelToken, Watch

if TYPE_CHECKING:
    from pydantic import ValidationError

P = ParamSpec("P")
T = TypeVar("T")

_SINGLE = frozenset({type(None), str, bytes, bool, int, float})


def check_call(request: type[op.Request], args: Mapping[str, Any]) -> tuple[op.HostArguments, op.Request | None]:
    """Return the arguments of a call and the request that they are; None for that if a value is out of range.

    Arguments that say None where that is the default, as most of a call do, are left out.
    Raises TypeError for an option that ``request`` does not have, one that is missing, or a value of a wrong type.
    A value of the right type that is out of range is not a wrong call: it is the failure ``invalid_arguments``.
    Nothing is converted, as JSON of models is: "5" is not a number, and 1 is not True. Any collection may be given as a list,
    any mapping as a dict, an int as a float.
    """
    given = op.HostArguments(
        {name: value for name, value in args.items() if value is not None or name not in request.none_by_default}
    )
    plain = {name: _plain(value) for name, value in given.items()}
    try:
        return given, request.model_validate(plain, strict=True)
    except validation_error() as error:
        raise_if_wrong_call(request, error, args)
        return given, None


def validation_error() -> type[ValidationError]:
    """Return pydantic's exception, for an ``except``: nothing is imported until something was raised."""
    from pydantic import ValidationError

    return ValidationError


def raise_if_wrong_call(
    request: type[op.Request], error: ValidationError, args: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Raise the TypeError of ``check_call`` if ``error`` has one. ``args`` as the caller gave them, where others were validated."""
    problems = error.errors(include_url=False, include_context=False)
    name = request.operation
    for problem in problems:
        option = str(problem["loc"][0])
        if len(problem["loc"]) > 1:
            if words := _nested(request, problem):
                raise TypeError(f"{name}(): {words}.")
            continue
        if problem["type"] == "extra_forbidden":
            raise _unknown_option(name, option)
        if problem["type"] == "missing":
            raise TypeError(f"{name}() needs the argument {option!r}.")
    wrong = [problem for problem in problems if _is_of_wrong_type(problem)]
    if wrong:
        raise TypeError(_worded(name, wrong, args))


def explain_unknown_options(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate the method of an operation: for an unknown option the TypeError names the one that was probably meant."""
    code = method.__code__
    name, known = code.co_name, frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> T:
        if not options.keys() <= known:
            option = next(option for option in options if option not in known)
            raise _unknown_option(name, option)
        return method(*args, **options)

    return call


def check_request(request: object, watch: object) -> None:
    """Raise TypeError for what ``perform`` does not take."""
    if not isinstance(request, op.Request):
        given = type(request).__name__
        raise TypeError(
            f"perform(): request must be a Request such as Run(command='ls'), not {given}; execute() takes a name."
        )
    if watch is not None:
        check_types("perform", watch=(watch, Watch | None))


def check_cancel(call: str, cancel: object) -> None:
    """Raise TypeError if ``cancel`` is neither a CancelToken nor None."""
    if cancel is not None and not isinstance(cancel, CancelToken):
        raise TypeError(f"{call}(): cancel must be a CancelToken or None, not {type(cancel).__name__}.")


def answered(method: Callable[P, Envelope[T]], *args: P.args, **options: P.kwargs) -> Envelope[T]:
    """Return what a method of an environment answers, as a failure also where the sandbox is closed.

    For work on a sandbox that another thread or its owner may close at any time.
    """
    try:
        return method(*args, **options)
    except SandboxError as error:
        if error.code is not ErrorCode.sandbox_closed:
            raise
        return Failure.of(error)


def raise_if_closed(answer: Envelope[Any]) -> None:
    """Raise SandboxError if ``answer`` says that the sandbox is closed or was not started: only the program can change that."""
    if isinstance(answer, Failure) and answer.code is ErrorCode.sandbox_closed:
        answer.unwrap()


def _unknown_option(operation: str, option: str) -> TypeError:
    from difflib import get_close_matches

    known = list(op.OPERATIONS[operation].model_fields)
    close = get_close_matches(option, known, n=1)
    meant = f"Did you mean {close[0]!r}?" if close else f"It takes {', '.join(known)}."
    return TypeError(f"{operation}() has no option {option!r}. {meant}")


def _nested(request: type[op.Request], problem: Any) -> str | None:
    """Return the sentence on a field within an argument that is missing, unknown, or none of the values it may have."""
    kind, place, given = problem["type"], problem["loc"], problem["input"]
    if kind in ("missing", "extra_forbidden") or (kind == "literal_error" and _is_of_wrong_type(problem)):
        return argument_words.nested(kind, place, given, op.schema_of(request))
    return None


def _plain(value: Any) -> Any:
    """``value`` in the one type of its kind that is valid strictly."""
    if type(value) in _SINGLE:  # most are, and the abstract classes below take longer
        return value
    if type(value) in (list, tuple):
        return tuple(value)
    if isinstance(value, Mapping):
        return dict(value)
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray | memoryview)
    return tuple(value) if is_list else value


def _is_of_wrong_type(problem: Any) -> bool:
    kind, given = problem["type"], problem["input"]
    if kind == "float_type" and isinstance(given, int) and not isinstance(given, bool):
        return False  # it has more digits than a float can hold
    if kind == "literal_error":
        return not isinstance(given, str)
    return bool(kind.endswith(("_type", "_parsing")) or kind == "int_from_float")


def _worded(call: str, wrong: list[Any], args: Mapping[str, Any]) -> str:
    """Return the sentence on the first wrong argument. Pydantic reports each type that a value may have as a problem of its own."""
    place = wrong[0]["loc"]
    found = wrong[0]["input"]
    given = args.get(place[0], found) if len(place) == 1 else found
    same = [problem for problem in wrong if problem["loc"][0] == place[0]]
    wanted = dict.fromkeys(problem["msg"].removeprefix("Input should be ").partition(",")[0] for problem in same)
    inner = "".join(f"[{part!r}]" for part in place[1:]) if len(same) == 1 else ""
    return f"{call}(): {place[0]}{inner} must be {' or '.join(wanted)}, not {type(given).__name__}."
