"""The hints of a service in the words of those who use it through this client.

A service says what an HTTP caller can do. A user of the CLI has options and variables instead, and a program has arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from sandbox.errors import ErrorCode
from sandbox.readers import Hint

from .codes import ProblemCode

_ADDRESS = "Check that {name} is the address of the service, without a path, and that the service is not older than this client."
UNREACHABLE = Hint(
    "Check that it is running there and that this host can reach it. The sandbox goes on until its time to live is over.",
    "Check that it is running there and that this host can reach it, or unset GAMEBOX_URL and leave out --remote to use this "
    "host's engine. Sandboxes of the service go on until their time to live is over.",
)
UNTRUSTED = Hint(
    "Give ca_file=..., or set GAMEBOX_CA_FILE, with the authority of its certificate: of a service with --tls-local, that is "
    "tls/ca.pem in its folder.",
    "Set GAMEBOX_CA_FILE to the authority of its certificate: of a service with --tls-local, that is tls/ca.pem in its folder. "
    "`gamebox serve --print-env gamebox` prints it on the host of the service.",
)
MISSING_KEY = Hint(
    "Give api_key=..., or set GAMEBOX_API_KEY; a new service writes its first key to admin.key in its folder.",
    "Set GAMEBOX_API_KEY to a key of the service, or unset GAMEBOX_URL to use this host's engine; a new service writes its first "
    "key to admin.key in its folder.",
)
INVALID_ADDRESS = Hint(
    'Give url="http://127.0.0.1:8080" or the like, or set GAMEBOX_URL.',
    "Set GAMEBOX_URL to the address of a service, such as http://127.0.0.1:8080, or unset it and leave out --remote to use this "
    "host's engine; `gamebox serve` starts a service.",
)
_QUOTA = "Wait, ask for less, or end sandboxes that are no longer needed ({how}). The operator sets the quotas."

# By code: the hint on the command line, and in Python.
_WORDS: Mapping[str, tuple[str, str]] = {
    ProblemCode.unauthorized: (
        "Set GAMEBOX_API_KEY to a key of this service. Its operator makes keys; the first one is in admin.key in its folder.",
        "Give a key of this service as api_key=..., or set GAMEBOX_API_KEY to one. Its operator makes keys.",
    ),
    ProblemCode.locked_out: (
        "Set GAMEBOX_API_KEY to a valid key of this service: valid keys are not locked out.",
        "Give a valid api_key=..., or set GAMEBOX_API_KEY to one: valid keys are not locked out.",
    ),
    ProblemCode.forbidden: (
        "Ask the operator for a key with that scope, and set GAMEBOX_API_KEY to it.",
        "Ask the operator for a key with that scope.",
    ),
    ProblemCode.wrong_host: (
        "Set GAMEBOX_URL to a name that the service knows; its operator can add others to allowed_hosts.",
        "Use a name that the service knows; its operator can add others to allowed_hosts.",
    ),
    ProblemCode.route_not_found: (_ADDRESS.format(name="GAMEBOX_URL"), _ADDRESS.format(name="url")),
    ProblemCode.method_not_allowed: (_ADDRESS.format(name="GAMEBOX_URL"), _ADDRESS.format(name="url")),
    ProblemCode.unknown_operation: (
        "The service is older than this client: use a gamebox of its version.",
        "The service is older than this client: use a gamebox of its version.",
    ),
    ProblemCode.quota_exceeded: (_QUOTA.format(how="`gamebox rm ID`"), _QUOTA.format(how="close()")),
    ProblemCode.body_too_large: (
        "Copy files with `gamebox cp`, which streams them.",
        "Send files with upload(), which streams them.",
    ),
    ProblemCode.secret_not_found: (
        "Store it with a key of the scope manage: PUT /v1/secrets/NAME.",
        "Store it in the service: PUT /v1/secrets/NAME. Or use env.secret(...), whose value the service does not store.",
    ),
    ErrorCode.sandbox_not_found: (
        "`gamebox ls --remote` lists the sandboxes of the service.",
        "Start another one: this one was deleted, or its time to live is over.",
    ),
}


def hint_of(code: str, hint: str) -> str:
    """Return the hint of a problem with that code; other readers than an HTTP caller have their own where that differs."""
    words = _WORDS.get(code)
    return hint if words is None else Hint(hint, *words)
