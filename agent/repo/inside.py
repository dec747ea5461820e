"""The git repository in the workspace of a sandbox: made inside, by the git of its image, from the files that were
copied.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from sandbox.environment.base import Environment
from sandbox.environment.call_errors import answered

GIT = ".git"
SECONDS = 300.0
_NO_GIT = 97
_NO_COMMITS = 98
# Neither the configuration of a user nor templates count, and the commit is the same each time, so that replays agree.
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
    "GIT_AUTHOR_NAME": "Gamebox",
    "GIT_AUTHOR_EMAIL": "gamebox@example.com",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "Gamebox",
    "GIT_COMMITTER_EMAIL": "gamebox@example.com",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00+0000",
}
_INIT = (
    "git -c init.defaultBranch=main init -q --template= {options} . && "
    "git config user.name Gamebox && git config user.email gamebox@example.com && git config gc.auto 0"
)
_COMMIT = (
    "git -c core.compression=1 -c core.safecrlf=false add -Af . {without} && "
    "git commit -q --no-verify --allow-empty -m 'The files that were copied into the sandbox'"
)
# The objects are a stranger's: without those of HEAD there is no history to work with.
_HISTORY = (
    "{ { git rev-parse -q --verify 'HEAD^{commit}' >/dev/null && git reset -q && git status >/dev/null; } || { "
    "git rev-parse -q --verify HEAD >/dev/null && exit 1; "
    "git cat-file --batch-all-objects --batch-check='%(objecttype)' | grep -q commit && exit 1; "
    f"exit {_NO_COMMITS}; }}; }}"
)


def repository_in(
    environment: Environment,
    size_bytes: int,
    most_bytes: int | None,
    *,
    history: bool = False,
    without: Sequence[str] = (),
) -> str:
    """Make the repository as ``make_repository`` does, unless files of ``size_bytes`` leave too little of
    ``most_bytes`` for objects.
    """
    if most_bytes is not None and not history and size_bytes * 3 > most_bytes:
        return "the workspace is not a git repository: its files take more than a third of the space"
    return make_repository(environment, history=history, without=without)


def make_repository(environment: Environment, *, history: bool = False, without: Sequence[str] = ()) -> str:
    """Make the workspace a git repository with one commit of its files; with ``history``, of the objects and refs in its .git.

    ``without`` are paths that git is to ignore: they are in .git/info/exclude.
    Returns "" if that worked; else a sentence for the user: why there is no git repository, with the workspace as it was, or why
    the history could not be used. Raises nothing.
    """
    if history:
        wide = "$(grep -rqE '^[0-9a-f]{64}( |$)' .git/HEAD .git/refs .git/packed-refs 2>/dev/null && echo --object-format=sha256)"
        failed = _tried(environment, f"{_INIT.format(options=wide)} && {_excluding(without)} && {_HISTORY}")
        if not failed:
            return ""
        again = make_repository(environment, without=without)
        return f"the history cannot be used in the sandbox: {failed}" + (f"; {again}" if again else "")
    commit = _COMMIT.format(without=" ".join(shlex.quote(f":(exclude,top,literal){path}") for path in without))
    failed = _tried(environment, f"{_INIT.format(options='')} && {_excluding(without)} && {commit}")
    return f"the workspace is not a git repository: {failed}" if failed else ""


def _excluding(paths: Sequence[str]) -> str:
    """Return a command that lets git ignore ``paths``, whose special characters stand for themselves."""
    lines = ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", path) for path in paths]
    text = shlex.quote("".join(f"{line}\n" for line in lines))
    return f"mkdir -p .git/info && printf %s {text} >> .git/info/exclude" if paths else "true"


def _tried(environment: Environment, script: str) -> str:
    """Return why the script failed, after removing what it made; "" if it did not fail."""
    guarded = f"command -v git >/dev/null || exit {_NO_GIT}; ({script}) 2>&1"
    answer = answered(environment.run, guarded, session=None, env=_ENVIRONMENT, timeout_seconds=SECONDS)
    if answer.ok and answer.result.exit_code == 0:
        return ""
    answered(environment.run, "rm -rf .git", session=None)
    if not answer.ok:
        return answer.error
    if answer.result.exit_code == _NO_GIT:
        return "the image has no git"
    if answer.result.exit_code == _NO_COMMITS:
        return "the repository has no commits yet"
    return answer.result.output.strip()[-300:] or f"git ended with {answer.result.exit_code}"
