"""Ready-made side services as values; tests/integration/test_doc_commands.py runs them."""

from __future__ import annotations

import pytest

from sandbox import SandboxError, services
from sandbox.docker.images.recipes import find_recipe
from sandbox.errors import ErrorCode


def test_each_has_an_image_of_ours_a_port_and_a_check() -> None:
    for service in (services.postgres(), services.redis()):
        assert find_recipe(service.image) is not None
        assert len(service.all_ports) == 1
        assert service.ready.command
        assert service.user == "agent"


@pytest.mark.parametrize("name", ["", "Orders", "a b", "x;drop table", "1st", "a" * 64, "ö"])
def test_a_database_has_a_plain_name(name: str) -> None:
    with pytest.raises(SandboxError, match="cannot be the name") as caught:
        services.postgres(database=name)
    assert caught.value.code is ErrorCode.invalid_configuration
