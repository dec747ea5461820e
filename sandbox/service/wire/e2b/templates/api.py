"""The REST API of templates."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Query, Request, Response

from sandbox.docker.builds.steps import Plan
from sandbox.docker.spec import SandboxSpec
from sandbox.limits import MIB
from sandbox.service.house import House, Manager, Reader, house_of
from sandbox.service.http.bodies import CreateSandbox
from sandbox.service.http.payloads.reading import body_of
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.keys import Caller
from sandbox.service.operators.facts import note
from sandbox.service.store.tables.templates import BuildRecord, TemplateRecord
from sandbox.service.templates.build_log import LEVELS, page
from sandbox.service.templates.builds import Order
from sandbox.service.templates.names import parse_name
from sandbox.service.tenants import ceiling as under
from sandbox.service.tenants.rules import Ceiling
from sandbox.service.wire.e2b.bodies import NetworkConfig, read, refused
from sandbox.service.wire.e2b.errors import ApiRoute
from sandbox.service.wire.e2b.storage.snapshots import delete_snapshot

from . import answers, bodies
from .steps import Base, archives_of, config_of, plan_of, worded

router = APIRouter(tags=["e2b"], route_class=ApiRoute)
BODY_BYTES = 1 << 20
MOST_ITEMS = 100
# As E2B has it.
CPUS, MEMORY_MB = 2, 1024
# In all others the user is made, unless it is there.
IMAGES_WITH_USER = ("gamebox/e2b", "gamebox/code-interpreter")
# The profile of the sandboxes in which steps run.
PROFILE = "root"


@router.post("/v3/templates", status_code=202)
async def request_build(request: Request, caller: Manager) -> dict[str, Any]:
    """Ask for a build of a template, which is new if there is none of that name. It is started later."""
    house = house_of(request)
    asked: bodies.NewBuild = read(bodies.NewBuild, await body_of(request, BODY_BYTES))
    name = asked.name or asked.alias
    if not name:
        raise Problem(400, ProblemCode.invalid_body, "The body has no name.", "Name the template.")
    cpus, memory = asked.cpus or CPUS, (asked.memory_mb or MEMORY_MB) * MIB
    ceiling = house.tenants.active(caller.tenant).ceiling
    under.check_profile(ceiling, PROFILE)
    wanted = {key: value for key, value in (("cpus", asked.cpus), ("memory_bytes", asked.memory_mb and memory)) if value}
    limits = under.chosen_limits(ceiling, wanted, {"cpus": cpus, "memory_bytes": memory})
    template, build = await house.templates.request(
        caller.tenant, name, asked.tags or (), float(limits["cpus"]), int(limits["memory_bytes"])
    )
    note(request.scope, target=template.id)
    return answers.requested(template, build)


@router.post("/v2/templates/{template_id}/builds/{build_id}", status_code=202)
async def start_build(request: Request, caller: Manager, template_id: str, build_id: str) -> dict[str, Any]:
    """Have a build carried out, in sandboxes of the tenant."""
    house = house_of(request)
    asked: bodies.StartBuild = read(bodies.StartBuild, await body_of(request, BODY_BYTES))
    template = await house.templates.find(caller.tenant, template_id)
    build = await house.templates.build(caller.tenant, template, build_id)
    base, is_new = await _base(house, caller, asked)
    plan, own = plan_of(asked, base, is_new=is_new)
    for number, digest in archives_of(asked):
        if not house.templates.archives.has(caller.tenant, digest):
            detail = f"Step {number}, COPY: nothing was uploaded for the hash {digest}."
            raise Problem(400, ProblemCode.invalid_body, detail, "Upload its files first: GET /templates/{id}/files/{hash}.")
    spec = _spec(house, house.tenants.active(caller.tenant).ceiling, build, plan)
    await house.templates.start(Order(record=build, plan=plan, spec=spec, own_steps=own, worded=partial(worded, asked)))
    return {}


async def _base(house: House, caller: Caller, asked: bodies.StartBuild) -> tuple[Base, bool]:
    """Return what a build begins with, and whether that is no template that was built here. Raises Problem."""
    if (asked.image is None) == (asked.template is None):
        raise Problem(400, ProblemCode.invalid_body, "Give either fromImage or fromTemplate.", "Correct that.")
    if asked.registry:
        raise refused("fromImageRegistry", "Images are not pulled here: the operator can put one on the engine and allow it.")
    if asked.template is not None:
        found = await house.templates.resolve(caller.tenant, asked.template)
        if found.build is None:
            return Base(found.image, found.image in IMAGES_WITH_USER), True
        return Base(found.image, True, config_of(dict(found.build.config))[0]), False
    name = asked.image or ""
    if (image := house.settings.e2b_images.get(name)) is not None:
        return Base(image, image in IMAGES_WITH_USER), True
    try:
        under.check_image(house.tenants.active(caller.tenant).ceiling, name)
    except Problem as problem:
        known = ", ".join(house.settings.e2b_images)
        hint = f"Images are not pulled here. Use one of {known}, or have the operator add it to the engine and to e2b_images."
        raise Problem(403, ProblemCode.forbidden_by_operator, problem.detail, hint) from problem
    return Base(name, has_user=False), True


class _StepSandbox(CreateSandbox):
    """The sandboxes of a build. What their image is built from was checked before."""

    def check_image(self, ceiling: Ceiling) -> None:
        """See the base class."""


def _spec(house: House, ceiling: Ceiling, build: BuildRecord, plan: Plan) -> SandboxSpec:
    """Return what the sandboxes of a build are like: under the ceiling of the tenant, as all others. Raises Problem."""
    network = NetworkConfig.model_validate({}).body(ceiling)
    seconds = min(house.settings.template_build_seconds, ceiling.most_time_to_live_seconds)
    body = _StepSandbox.model_validate(
        {
            "image": plan.base,
            "profile": PROFILE,
            "network": network,
            "limits": {"cpus": build.cpus, "memory_bytes": build.memory_bytes},
            "track_changes": False,
            "time_to_live_seconds": seconds,
        }
    )
    return body.spec(house.settings, ceiling)


@router.get("/templates/{template_id}/builds/{build_id}/status")
async def build_status(
    request: Request,
    caller: Reader,
    template_id: str,
    build_id: str,
    offset: int = Query(0, alias="logsOffset", ge=0, le=1 << 31),
    limit: int = Query(MOST_ITEMS, ge=1, le=MOST_ITEMS),
    level: str | None = None,
) -> dict[str, Any]:
    """Return how a build is going, and its log from ``logsOffset`` on."""
    house = house_of(request)
    build = await _build(house, caller, template_id, build_id)
    entries = await house.templates.log(build)
    return answers.status(build, page(entries, _level(level), offset, limit))


@router.get("/templates/{template_id}/builds/{build_id}/logs")
async def build_logs(
    request: Request,
    caller: Reader,
    template_id: str,
    build_id: str,
    cursor: int | None = None,
    limit: int = Query(MOST_ITEMS, ge=0, le=MOST_ITEMS),
    direction: str = "forward",
    level: str | None = None,
) -> dict[str, Any]:
    """Return entries of the log of a build, from a time in milliseconds on, or backwards."""
    house = house_of(request)
    if direction not in ("forward", "backward"):
        raise Problem(400, ProblemCode.invalid_query, f"direction is {direction[:80]!r}.", "Use forward or backward.")
    entries = await house.templates.log(await _build(house, caller, template_id, build_id))
    if direction == "backward":
        last = math.inf if cursor is None else cursor / 1000
        entries = [each for each in reversed(entries) if each["at"] <= last]
    elif cursor is not None:
        entries = [each for each in entries if each["at"] >= cursor / 1000]
    return {"logs": [answers.entry(each) for each in page(entries, _level(level), 0, limit)]}


async def _build(house: House, caller: Caller, template_id: str, build_id: str) -> BuildRecord:
    template = await house.templates.find(caller.tenant, template_id)
    return await house.templates.build(caller.tenant, template, build_id)


def _level(text: str | None) -> str | None:
    if text is not None and text not in LEVELS:
        raise Problem(400, ProblemCode.invalid_query, f"level is {text[:80]!r}.", f"Use one of {', '.join(LEVELS)}.")
    return text


@router.get("/templates")
async def list_templates(request: Request, caller: Reader) -> list[dict[str, Any]]:
    """List the templates of the tenant, the latest first."""
    house = house_of(request)
    return await _listed(house, await house.templates.of(caller.tenant))


@router.get("/v2/templates")
async def list_pages(
    request: Request,
    response: Response,
    caller: Reader,
    limit: int = Query(MOST_ITEMS, ge=1, le=MOST_ITEMS),
    token: str | None = Query(None, alias="nextToken"),
) -> list[dict[str, Any]]:
    """List them a page at a time."""
    house = house_of(request)
    found = await house.templates.of(caller.tenant)
    shown, rest = _page(found, [(each.created_at, each.id) for each in found], limit, token)
    if rest is not None:
        response.headers["X-Next-Token"] = rest
    return await _listed(house, shown)


async def _listed(house: House, found: Sequence[TemplateRecord]) -> list[dict[str, Any]]:
    return [answers.template(each, await house.templates.builds_of(each), house.settings) for each in found]


@router.get("/templates/aliases/{alias:path}")
async def get_alias(request: Request, caller: Reader, alias: str) -> dict[str, Any]:
    """Return what a name stands for. A name of another tenant is unknown."""
    house = house_of(request)
    name = parse_name(alias)
    if name.namespace is None and name.name in house.settings.e2b_templates:
        return {"templateID": name.name, "public": True}
    template = await house.templates.find(caller.tenant, alias)
    return {"templateID": template.id, "public": False}


@router.post("/templates/tags", status_code=201)
async def assign_tags(request: Request, caller: Manager) -> dict[str, Any]:
    """Have tags name a build."""
    asked: bodies.AssignTags = read(bodies.AssignTags, await body_of(request, BODY_BYTES))
    note(request.scope, target=asked.target)
    build, tags = await house_of(request).templates.assign(caller.tenant, asked.target, asked.tags)
    return {"tags": list(tags), "buildID": build}


@router.delete("/templates/tags", status_code=204)
async def remove_tags(request: Request, caller: Manager) -> Response:
    """Take tags away."""
    asked: bodies.RemoveTags = read(bodies.RemoveTags, await body_of(request, BODY_BYTES))
    note(request.scope, target=asked.name)
    await house_of(request).templates.unassign(caller.tenant, asked.name, asked.tags)
    return Response(status_code=204)


@router.get("/templates/{template_id:path}/tags")
async def get_tags(request: Request, caller: Reader, template_id: str) -> list[dict[str, Any]]:
    """List the tags of a template, the latest first."""
    house = house_of(request)
    return [answers.tag(each) for each in await house.templates.tags(await house.templates.find(caller.tenant, template_id))]


@router.get("/templates/{template_id:path}")
async def get_template(
    request: Request,
    response: Response,
    caller: Reader,
    template_id: str,
    limit: int = Query(MOST_ITEMS, ge=1, le=MOST_ITEMS),
    token: str | None = Query(None, alias="nextToken"),
) -> dict[str, Any]:
    """Return a template with its builds."""
    house = house_of(request)
    template = await house.templates.find(caller.tenant, template_id)
    builds = await house.templates.builds_of(template)
    shown, rest = _page(builds, [(each.created_at, each.id) for each in builds], limit, token)
    if rest is not None:
        response.headers["X-Next-Token"] = rest
    return answers.with_builds(template, shown, house.settings)


@router.patch("/templates/{template_id:path}")
@router.patch("/v2/templates/{template_id:path}")
async def change_template(request: Request, caller: Manager, template_id: str) -> dict[str, Any]:
    """Say whether a template is public. None can be: each is its tenant's."""
    house = house_of(request)
    asked: bodies.ChangeTemplate = read(bodies.ChangeTemplate, await body_of(request, BODY_BYTES))
    template = await house.templates.find(caller.tenant, template_id)
    if asked.public:
        raise refused("public = true", "Templates belong to one tenant: the operator can give an image to all (e2b_templates).")
    return {"names": [f"{template.tenant}/{template.name}"]}


@router.delete("/templates/{template_id:path}", status_code=204)
async def delete_template(request: Request, caller: Manager, template_id: str) -> Response:
    """Remove a template with all its builds, or a snapshot. Sandboxes that run go on."""
    house = house_of(request)
    try:
        template = await house.templates.find(caller.tenant, template_id)
    except Problem:
        if not await delete_snapshot(house, caller, template_id):
            raise
    else:
        await house.templates.delete(template)
    return Response(status_code=204)


def _page(items: Sequence[Any], places: list[tuple[float, str]], limit: int, token: str | None) -> tuple[list[Any], str | None]:
    """Return a page of items, which come the latest first, and what the next one begins after."""
    found = list(zip(items, places, strict=True))
    if token is not None:
        try:
            at, ident = json.loads(base64.b64decode(token[:200].encode(), b"-_", validate=True))
            last = (-float(at), str(ident))
        except (ValueError, TypeError, OverflowError) as error:
            hint = "Send the header X-Next-Token unchanged."
            raise Problem(400, ProblemCode.invalid_query, f"nextToken is {token[:80]!r}.", hint) from error
        found = [(item, place) for item, place in found if (-place[0], place[1]) > last]
    rest = None
    if len(found) > limit:
        rest = base64.urlsafe_b64encode(json.dumps(found[limit - 1][1]).encode()).decode()
    return [item for item, _ in found[:limit]], rest

