"""The templates of all tenants: asked for, built, tagged, found by their names, and removed when nobody needs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sandbox.client.http.codes import ProblemCode
from sandbox.docker.builds.layers import ImageStore
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.service.clock import now
from sandbox.service.fleet.creating import new_id
from sandbox.service.fleet.fleet import Fleet
from sandbox.service.http.problems import Problem
from sandbox.service.settings import Settings
from sandbox.service.store.database import Database
from sandbox.service.store.tables import templates as rows
from sandbox.service.store.tables.templates import BuildRecord, Tag, TemplateRecord
from sandbox.service.tenants.tenants import Tenants

from .archives import Archives
from .build_log import BuildLog, Entry, read_log
from .builds import STOPPED, Builds, Order
from .names import DEFAULT_TAG, TemplateName, check_tags, parse_name

log = logging.getLogger(__name__)

TIDY_SECONDS = 600.0
# Builds that were asked for and not started: the last ones of a tenant, and how long they are kept.
MOST_WAITING, WAITING_SECONDS = 100, 86400.0
MOST_TAGS_OF_TEMPLATE = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """What a name stands for: an image of the operator's, or a build of a template of the tenant."""

    name: str
    image: str
    template: TemplateRecord | None = None
    build: BuildRecord | None = None


class Templates:
    """The templates by tenants. Names are those of one tenant; ``base`` and the like are the operator's for all of them."""

    def __init__(self, settings: Settings, database: Database, tenants: Tenants, fleet: Fleet) -> None:
        self._settings, self._database, self._tenants, self._fleet = settings, database, tenants, fleet
        self.archives = Archives(settings, tenants)
        self.builds = Builds(settings, database, tenants, fleet.ceilings, fleet.workers, self.archives)
        self._unneeded: set[tuple[str, str]] = set()

    async def load(self) -> None:
        """Note which builds have ended with the service before this one, and tidy up from now on."""
        self.archives.begin()
        lines = BuildLog()
        lines.add("error", STOPPED)
        at, text = now(), lines.text()
        count = await self._database.call(lambda connection: rows.interrupt_builds(connection, at, STOPPED, text))
        if count:
            log.warning("%d builds of templates ended with the service before this one", count)
        self._fleet.spawn(self._tidy())

    async def close(self) -> None:
        """End what is under way."""
        await self.builds.close()

    # Names

    def is_own_name(self, tenant: str, name: TemplateName) -> bool:
        """Return whether a name may be one of the tenant's."""
        return name.namespace in (None, tenant) and name.name not in self._settings.e2b_templates

    def images_of_operator(self) -> dict[str, str]:
        """Return the images of the operator's templates by their names."""
        return self._settings.e2b_templates

    async def find(self, tenant: str, text: str) -> TemplateRecord:
        """Return a template of the tenant by its id or name, with or without a tag. Raises Problem."""
        name = parse_name(text)
        found = None
        if self.is_own_name(tenant, name):
            found = await self._database.call(lambda connection: rows.find(connection, tenant, name.name))
        if found is None:
            raise self.unknown(text)
        return found

    async def resolve(self, tenant: str, text: str) -> Found:
        """Return what sandboxes of a template are started from. Raises Problem."""
        name = parse_name(text)
        if name.namespace is None and (image := self._settings.e2b_templates.get(name.name)) is not None:
            return Found(name.name, image)
        template = await self.find(tenant, text)
        tag = name.tag or DEFAULT_TAG
        build = await self._database.call(lambda connection: rows.tagged_build(connection, template.id, tag))
        if build is None or not build.image:
            tags = [each.name for each in await self.tags(template)]
            hint = f"It has the tags {', '.join(tags[:20])}: use {template.name}:TAG." if tags else "Build it first."
            raise Problem(
                404, ProblemCode.template_not_found, f"The template {template.name!r} has no build with the tag {tag!r:.80}.", hint
            )
        return Found(text, self.builds.images(tenant).reference(build.image), template, build)

    def unknown(self, text: str) -> Problem:
        """Return the problem of a name that nothing has."""
        known = ", ".join(self._settings.e2b_templates)
        hint = f"Use one of {known}, or a template that you have built; GET /templates lists those."
        return Problem(404, ProblemCode.template_not_found, f"There is no template {text!r:.200}.", hint)

    # Builds

    async def request(
        self, tenant: str, text: str, tags: Sequence[str], cpus: float, memory_bytes: int
    ) -> tuple[TemplateRecord, BuildRecord]:
        """Write down a build that is to be started, and its template if that is new. Raises Problem."""
        name = parse_name(text)
        if not self.is_own_name(tenant, name):
            what = f"The name {text[:200]!r} is the operator's, or that of another tenant."
            raise Problem(403, ProblemCode.forbidden, what, "Choose another name.")
        wanted = check_tags((*([name.tag] if name.tag else []), *tags)) or (DEFAULT_TAG,)
        at, most = now(), self._tenants.active(tenant).quota.templates
        record = BuildRecord(
            id=str(uuid.uuid4()),
            template="",
            tenant=tenant,
            state="waiting",
            created_at=at,
            updated_at=at,
            cpus=cpus,
            memory_bytes=memory_bytes,
            tags=wanted,
        )
        made = await self._database.call(lambda connection: _request(connection, tenant, name.name, record, most))
        if made is None:
            detail = f"This tenant has {most} templates, the most that it may have."
            raise Problem(429, ProblemCode.quota_exceeded, detail, "Delete one that is not needed any more.", quota="templates")
        return made

    async def build(self, tenant: str, template: TemplateRecord, ident: str) -> BuildRecord:
        """Return a build of a template. Raises Problem."""
        found = await self._database.call(lambda connection: rows.build(connection, tenant, ident))
        if found is None or found.template != template.id:
            detail = f"The template {template.name!r} has no build {ident!r:.80}."
            raise Problem(404, ProblemCode.template_not_found, detail, "GET /templates/{templateID} lists its builds.")
        return found

    async def start(self, order: Order) -> None:
        """Have a build carried out. Raises Problem."""
        await self.builds.start(order)

    async def log(self, build: BuildRecord) -> list[Entry]:
        """Return the entries of the log of a build."""
        if (lines := self.builds.log_of(build.id)) is not None:
            return lines.first() if build.state == "building" else lines.all()
        text = await self._database.call(lambda connection: rows.logs_of(connection, build.id))
        return await asyncio.to_thread(read_log, text)

    async def builds_of(self, template: TemplateRecord) -> list[BuildRecord]:
        """Return the builds of a template, the latest first."""
        return await self._database.call(lambda connection: rows.builds_of(connection, template.id))

    async def of(self, tenant: str) -> list[TemplateRecord]:
        """Return the templates of a tenant, the latest first."""
        return await self._database.call(lambda connection: rows.of_tenant(connection, tenant))

    def note_use(self, template: TemplateRecord) -> None:
        """Count that a sandbox was started from a template."""
        at = now()
        self._database.note(lambda connection: rows.note_use(connection, template.id, at))

    # Tags

    async def tags(self, template: TemplateRecord) -> list[Tag]:
        """Return the tags of a template, the latest first."""
        return await self._database.call(lambda connection: rows.tags_of(connection, template.id))

    async def assign(self, tenant: str, target: str, tags: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """Have tags name the build that ``target`` names; return its id and the tags. Raises Problem."""
        template, tag = await self.find(tenant, target), parse_name(target).tag or DEFAULT_TAG
        wanted, at = check_tags(tuple(tags)), now()

        def work(connection: Any) -> str | None:
            build = rows.tagged_build(connection, template.id, tag)
            if build is None:
                return None
            present = {each.name for each in rows.tags_of(connection, template.id)}
            if len(present | set(wanted)) > MOST_TAGS_OF_TEMPLATE:
                raise Problem(
                    429,
                    ProblemCode.quota_exceeded,
                    f"A template has at most {MOST_TAGS_OF_TEMPLATE} tags.",
                    "Remove some that are not needed any more.",
                )
            for each in wanted:
                rows.put_tag(connection, template.id, Tag(each, build.id, at))
            return build.id

        build = await self._database.call(work)
        if build is None:
            detail = f"The template {template.name!r} has no build with the tag {tag!r:.80}."
            raise Problem(404, ProblemCode.template_not_found, detail, "List its tags: GET /templates/{templateID}/tags.")
        return build, wanted

    async def unassign(self, tenant: str, name: str, tags: Sequence[str]) -> None:
        """Take tags away; the image of a build without any goes. Raises Problem."""
        template = await self.find(tenant, name)
        await self._database.call(lambda connection: rows.remove_tags(connection, template.id, tags))

    # Ends

    async def delete(self, template: TemplateRecord) -> None:
        """Forget a template, and remove its images, except those that sandboxes or snapshots still need: they go later."""
        await self.builds.end(lambda record: record.template == template.id)
        builds = await self.builds_of(template)
        await self._database.call(lambda connection: rows.delete(connection, template.id))
        store = self.builds.images(template.tenant)
        for each in builds:
            if each.image:
                with contextlib.suppress(SandboxError):
                    await self._fleet.workers.in_engine(lambda image=each.image: self._remove(store, image), template.tenant)  # type: ignore[misc]

    async def delete_all(self, tenant: str) -> None:
        """Forget all that a tenant has of templates, builds and archives. Raises SandboxError if the engine does not answer."""
        await self.builds.end(lambda record: record.tenant == tenant)
        if count := self.builds.count(tenant):  # what the engine still commits would stay when nobody knows of it any more
            what = f"Builds of templates of the tenant {tenant} have not ended yet: {count}."
            raise SandboxError(ErrorCode.engine_unavailable, what, "The service tries again.")
        await self._database.call(lambda connection: rows.delete_all(connection, tenant))
        if tenant in self.archives.tenants():
            await self._fleet.workers.in_engine(self.builds.images(tenant).remove_all, tenant)
            await asyncio.to_thread(self.archives.forget, tenant)

    async def _tidy(self) -> None:
        while True:
            try:
                await self._tidy_once()
            except SandboxError as error:  # the engine or the store does not answer: the next time
                log.warning("images of templates could not be tidied up: %s", error.message)
            await asyncio.sleep(TIDY_SECONDS)

    async def _tidy_once(self) -> None:
        before = now() - WAITING_SECONDS
        await self._database.call(lambda connection: rows.forget_builds(connection, before))
        for tenant in self.archives.tenants():
            needed = await self._database.call(rows.images)
            await self._fleet.workers.in_engine(lambda: self._remove_unneeded(tenant, needed), tenant)  # noqa: B023
            await asyncio.to_thread(self.archives.prune, tenant)

    def _remove_unneeded(self, tenant: str, needed: set[str]) -> None:
        """Remove images that no build has any more, and layers that no build has used for long. Raises SandboxError.

        An image goes when it is found for the second time: a sandbox may be about to start from it.
        """
        store, seen = self.builds.images(tenant), set()
        for image in store.list():
            for name in image.names:
                if name in needed or self.builds.log_of(name) is not None:
                    continue
                if (tenant, name) not in self._unneeded or not self._remove(store, name):
                    seen.add((tenant, name))
        self._unneeded = {each for each in self._unneeded if each[0] != tenant} | seen
        store.prune(max(self._settings.template_unused_seconds, self._settings.template_build_seconds))

    def _remove(self, store: ImageStore, name: str) -> bool:
        """Remove an image, unless a sandbox or a snapshot needs it; return whether it is gone. Raises SandboxError.

        What is stopped has no container that would hold the image, and starts from it again.
        """
        used = {str(each.record.spec.get("image")) for each in self._fleet.all() if not each.is_over}
        if store.reference(name) in used | self._fleet.snapshots.bases():
            return False
        store.remove(name)
        return True


def _request(
    connection: Any, tenant: str, name: str, build: BuildRecord, most: int | None
) -> tuple[TemplateRecord, BuildRecord] | None:
    """Add a build, and its template if there is none of that name; return None if the tenant has ``most`` others."""
    template = rows.find(connection, tenant, name)
    if template is None:
        if most is not None and rows.count(connection, tenant) >= most:
            return None
        at = build.created_at
        template = TemplateRecord(id=new_id(), tenant=tenant, name=name, created_at=at, updated_at=at)
        rows.insert(connection, template)
    made = replace(build, template=template.id)
    rows.insert_build(connection, made)
    rows.limit_waiting(connection, tenant, MOST_WAITING)
    return template, made
