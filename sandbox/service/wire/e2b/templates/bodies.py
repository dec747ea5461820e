"""What clients ask for when they build templates. Fields that are not known are ignored; what changes the meaning is refused."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MOST_STEPS = 100
Text = Annotated[str, Field(max_length=300)]
Tags = Annotated[tuple[Text, ...], Field(max_length=32)]
Argument = Annotated[str, Field(max_length=64 << 10)]


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, allow_inf_nan=False)


class NewBuild(_Asked):
    """A build that is asked for. ``alias`` is what older clients call the name."""

    name: Text | None = None
    alias: Text | None = None
    tags: Tags | None = None
    cpus: int | None = Field(None, alias="cpuCount", ge=1, le=1024)
    memory_mb: int | None = Field(None, alias="memoryMB", ge=128, le=1 << 24)


class Step(_Asked):
    """One step: COPY, RUN, WORKDIR, USER or ENV, with its arguments."""

    type: str = Field(max_length=40)
    args: Annotated[tuple[Argument, ...], Field(max_length=2000)] = ()
    files_hash: str | None = Field(None, alias="filesHash", max_length=200)
    force: bool | None = False


class StartBuild(_Asked):
    """What is to be built."""

    image: str | None = Field(None, alias="fromImage", max_length=300)
    template: str | None = Field(None, alias="fromTemplate", max_length=400)
    registry: dict[str, Any] | None = Field(None, alias="fromImageRegistry")
    force: bool | None = False
    steps: Annotated[tuple[Step, ...], Field(max_length=MOST_STEPS)] | None = ()
    start_command: str | None = Field(None, alias="startCmd", max_length=64 << 10)
    ready_command: str | None = Field(None, alias="readyCmd", max_length=64 << 10)


class AssignTags(_Asked):
    """Tags for the build that ``target`` names."""

    target: Text
    tags: Annotated[Tags, Field(min_length=1)]


class RemoveTags(_Asked):
    """Tags to take away."""

    name: Text
    tags: Annotated[Tags, Field(min_length=1)]


class ChangeTemplate(_Asked):
    """What changes of a template."""

    public: bool | None = None
