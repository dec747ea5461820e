"""A plugin of pytest: the tests of mini-swe-agent's docker environment get the environment of Gamebox instead."""

from __future__ import annotations

from typing import Any

import minisweagent.environments.docker

from sandbox import DockerEnvironment
from sandbox.integrations.mini_swe_agent import GameboxEnvironment


class Substitute(GameboxEnvironment):
    """Takes what the tests give docker: an image that is not there, and the name of its program."""

    def __init__(self, **kwargs: Any) -> None:
        del kwargs["executable"], kwargs["image"]
        super().__init__(**kwargs)

    @property
    def container_id(self) -> str:
        """The name of the container, for the test that looks whether it is gone."""
        assert isinstance(self.environment, DockerEnvironment)
        return str(self.environment.backend.container_id)


setattr(minisweagent.environments.docker, "DockerEnvironment", Substitute)  # noqa: B010  # another type
