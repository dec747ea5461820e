"""The steps of a client as those of a build."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from sandbox.docker.builds import steps as plans
from sandbox.docker.builds.steps import Plan
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.templates.archives import HASH
from sandbox.service.wire.e2b.envd.access import HOME, USER

from .bodies import StartBuild, Step

# Images have this user where the sandbox's processes are its own: where it is missing, it is made.
_MAKE_USER = (
    f"grep -qs '^{USER}:' /etc/group || echo '{USER}:x:1000:' >> /etc/group; "
    f"grep -qs '^{USER}:' /etc/passwd || echo '{USER}:x:1000:1000::{HOME}:/bin/sh' >> /etc/passwd; "
    f"mkdir -p {HOME} && chown 1000:1000 {HOME}"
)
# As E2B runs them; images without bash have at least this.
_SHELL = ("/bin/sh", "-c", 'if command -v bash > /dev/null; then exec bash -c "$0"; fi; exec sh -c "$0"')
_NO_USER = re.compile(r"The image has no user '([^']{1,64})'")


@dataclass(frozen=True, slots=True)
class Base:
    """What a build begins with: an image, and whether it is one that clients of E2B know already, or was built here."""

    image: str
    has_user: bool
    user: str = USER


@dataclass(slots=True)
class _Translation:
    user: str
    steps: list[plans.Step] = field(default_factory=list)


def plan_of(asked: StartBuild, base: Base, *, is_new: bool) -> tuple[Plan, int]:
    """Return what is to be built, and how many steps of that are not the client's. Raises Problem for a step that is wrong.

    ``is_new`` says that the base was not built as a template: user and folder are then those of E2B.
    """
    made = _Translation(base.user)
    if not base.has_user:
        made.steps.append(plans.Run(_MAKE_USER, user="root"))
    if is_new:
        made.steps += [plans.User(USER), plans.Workdir(HOME)]
    own = len(made.steps)
    for number, step in enumerate(asked.steps or (), 1):
        try:
            made.steps.append(_step(step, made))
        except _WrongStepError as error:
            raise Problem(400, ProblemCode.invalid_body, f"Step {number}, {step.type[:20]}: {error}.", "Correct that.") from None
        except SandboxError as error:
            detail = f"Step {number}, {step.type[:20]}: {error.message}"
            raise Problem(400, ProblemCode.invalid_body, detail, error.hint) from error
    plan = Plan(
        base=base.image,
        steps=tuple(made.steps),
        start_command=asked.start_command or "",
        ready_command=asked.ready_command or "",
        shell=_SHELL,
        force=bool(asked.force),
    )
    return plan, own


def archives_of(asked: StartBuild) -> list[tuple[int, str]]:
    """Return the hashes of the archives that the steps copy from, with the numbers of these."""
    steps: Sequence[Step] = asked.steps or ()
    return [(number, each.files_hash or "") for number, each in enumerate(steps, 1) if each.type.upper() in ("COPY", "ADD")]


def worded(asked: StartBuild, sentence: str, step: str) -> str:
    """Return a sentence about a step as E2B has it, where its clients look for the words."""
    found = _NO_USER.search(sentence)
    steps = asked.steps or ()
    failed = steps[int(step) - 1] if step.isdecimal() and 0 < int(step) <= len(steps) else None
    if found is None or failed is None or failed.type.upper() != "RUN":
        return sentence
    command = (failed.args or ("",))[0]
    return f"failed to run command {command[:200]!r}: command failed: unauthenticated: invalid username: {found[1]!r}. {sentence}"


class _WrongStepError(Exception):
    """Why a step cannot be carried out."""


def _step(step: Step, made: _Translation) -> plans.Step:
    kind, args, force = step.type.upper(), step.args, bool(step.force)
    if kind == "RUN" and 1 <= len(args) <= 2:
        return plans.Run(args[0], user=args[1] if len(args) == 2 else "", force=force)
    if kind in ("COPY", "ADD") and 2 <= len(args) <= 4:
        return _copy(step, made)
    if kind == "WORKDIR" and len(args) == 1:
        return plans.Workdir(args[0])
    if kind == "USER" and len(args) == 1:
        made.user = args[0]
        return plans.User(args[0])
    if kind in ("ENV", "ARG") and args and len(args) % 2 == 0:
        return plans.Env(tuple(zip(args[::2], args[1::2], strict=True)))
    if kind in ("RUN", "COPY", "ADD", "WORKDIR", "USER", "ENV", "ARG"):
        raise _WrongStepError(f"it has {len(args)} arguments")
    raise _WrongStepError("there is no such step: use COPY, RUN, WORKDIR, USER or ENV")


def _copy(step: Step, made: _Translation) -> plans.Copy:
    source, destination, owner, mode = (*step.args, "", "")[:4]
    digest = step.files_hash or ""
    if not HASH.fullmatch(digest):
        raise _WrongStepError(f"filesHash is {digest[:80]!r}, which is not 64 hexadecimal digits")
    if mode and not (mode.isascii() and mode.isdecimal() and len(mode) <= 5 and set(mode) <= set("01234567")):
        raise _WrongStepError(f"the mode {mode[:20]!r} is not octal")
    parts = posixpath.normpath(source).split("/")
    if source.startswith("/") or ".." in parts or not source:
        raise _WrongStepError(f"{source[:200]!r} is not within the archive")
    return plans.Copy(
        archive=digest,
        source=source,
        destination=destination,
        owner=owner or made.user,
        mode=int(mode, 8) if mode else None,
        force=bool(step.force),
    )


def config_of(found: dict[str, Any]) -> tuple[str, str]:
    """Return the user and the folder of the commands of a sandbox, from what is known of its build."""
    return str(found.get("user") or USER), str(found.get("workdir") or HOME)
