"""Harbor's environment for E2B with a template that is there already, instead of one that is built for each task."""

from __future__ import annotations

from typing import Any

from harbor.environments.e2b import E2BEnvironment


class GameboxEnvironment(E2BEnvironment):
    """``harbor run --env harbor_environment:GameboxEnvironment``; the template is ``base`` unless it is given."""

    def __init__(self, *args: Any, template: str = "base", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._template_name = template

    async def _does_template_exist(self) -> bool:
        return True
