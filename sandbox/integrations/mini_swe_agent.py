"""An environment for mini-swe-agent: ``environment_class: sandbox.integrations.mini_swe_agent.GameboxEnvironment``.

It has a sandbox on this host's engine, or of the service at GAMEBOX_URL if that is set.
"""

from __future__ import annotations

import logging
import os
import re
from typing import Any, Self

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict, field_validator

from sandbox import DockerEnvironment, Failure, Limits, Network, RemoteEnvironment, SandboxUnavailableError
from sandbox.docker.spec import DEFAULT_IMAGE
from sandbox.errors import ErrorCode

SUBMITTED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
# mini-swe-agent shows its model the first and last few thousand characters.
_OUTPUT_BYTES = 4 << 20
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_GONE = frozenset({ErrorCode.sandbox_unavailable, ErrorCode.sandbox_closed, ErrorCode.sandbox_not_found})


class GameboxEnvironmentConfig(BaseModel):
    """The fields of mini-swe-agent's own ``docker`` environment, and what a sandbox has besides.

    ``allow`` are rules of the network, such as "packages.example.com"; without any there is no network. ``limits`` are fields of
    ``sandbox.Limits``. ``profile`` "root" makes commands root, as they are in the images of SWE-bench.
    """

    model_config = ConfigDict(extra="forbid")
    image: str = DEFAULT_IMAGE
    cwd: str = "/workspace"
    env: dict[str, str] = {}
    forward_env: list[str] = []
    timeout: float = 30
    container_timeout: str = "2h"
    interpreter: list[str] = ["bash", "-lc"]
    profile: str = "default"
    allow: list[str] = []
    limits: dict[str, Any] = {}
    pull: bool = False

    @field_validator("container_timeout")
    @classmethod
    def _has_unit(cls, text: str) -> str:
        _seconds(text)
        return text


class GameboxEnvironment:
    """The commands of one agent, in one sandbox, which ends with this process and after ``container_timeout``.

    Raises SandboxError.
    """

    def __init__(
        self, *, config_class: type = GameboxEnvironmentConfig, logger: logging.Logger | None = None, **kwargs: Any
    ) -> None:
        self.logger = logger or logging.getLogger("minisweagent.environment")
        self.config: Any = config_class(**kwargs)
        self.environment = _make(self.config).start()
        self.logger.info("started %r", self.environment)
        self._names: dict[str, str] = {}

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None) -> dict[str, Any]:
        """Run a command of the agent in a shell of its own.

        Raises Submitted when the agent has finished, and SandboxUnavailableError if the sandbox is gone.
        """
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        answer = self.environment.run(
            argv=[*self.config.interpreter, str(action.get("command", ""))],
            cwd=cwd or self.config.cwd,
            env={**forwarded, **self.config.env},
            session=None,
            timeout_seconds=timeout or self.config.timeout,
            keep_output_bytes=min(_OUTPUT_BYTES, self.environment.limits.most_kept_bytes),
        )
        result = answer.result
        output = "" if result is None else result.output
        if isinstance(answer, Failure):
            if answer.code in _GONE:
                raise SandboxUnavailableError(answer.reason or "closed", answer.error, answer.hint)
            return {
                "output": output,
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {answer.error} {answer.hint}".rstrip(),
                "extra": {"exception_type": answer.code.value, "exception": answer.error},
            }
        status = answer.unwrap().shell_status
        _raise_if_submitted(output, status)
        return {"output": output, "returncode": status, "exception_info": ""}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return what the templates of prompts may name: the configuration, and what ``uname`` says in the sandbox."""
        if not self._names:
            fields = ("system", "node", "release", "version", "machine")
            lines = self.environment.sh("uname -s; uname -n; uname -r; uname -v; uname -m", session=None).stdout.splitlines()
            self._names = dict(zip(fields, lines, strict=False))
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), self._names, kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """Return what the trajectory says of the environment."""
        name = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": name}}}

    def cleanup(self) -> None:
        """End the sandbox; may be called more than once."""
        environment = getattr(self, "environment", None)  # there is none after a start that failed
        if environment is not None:
            environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cleanup()

    def __del__(self) -> None:
        self.cleanup()


def _make(config: Any) -> DockerEnvironment | RemoteEnvironment:
    seconds = _seconds(config.container_timeout)
    options: dict[str, Any] = {
        "profile": config.profile,
        "network": Network.allow(*config.allow) if config.allow else Network.none(),
        "track_changes": False,
    }
    if os.environ.get("GAMEBOX_URL"):
        options |= {"limits": Limits(**config.limits), "time_to_live_seconds": seconds}
        return RemoteEnvironment(config.image, **options)
    limits = Limits(**{"lifetime_seconds": seconds, "idle_seconds": None, **config.limits})
    return DockerEnvironment(config.image, **options, limits=limits, pull=config.pull)


def _seconds(text: str) -> float:
    """Return how long that is, as the command ``sleep`` reads it. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)", text)
    if found is None:
        raise ValueError(f"container_timeout is {text!r}: give a number with s, m, h or d, as in 2h")
    return float(found[1]) * _UNITS[found[2]]


def _raise_if_submitted(output: str, status: int | None) -> None:
    lines = output.lstrip().splitlines(keepends=True)
    if status == 0 and lines and lines[0].strip() == SUBMITTED:
        text = "".join(lines[1:])
        raise Submitted({"role": "exit", "content": text, "extra": {"exit_status": "Submitted", "submission": text}})
