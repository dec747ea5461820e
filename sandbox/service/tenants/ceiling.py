"""Cut or refuse by a ceiling: what a caller asks for in words is refused if it is too much, what it left out is cut. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from sandbox.docker.builds.engine_images import REPOSITORY
from sandbox.docker.images.snapshots import is_snapshot
from sandbox.docker.spec import SandboxSpec
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.network.rules import Rule
from sandbox.network.services.service import Service
from sandbox.service.http.limits import LARGEST
from sandbox.service.http.problems import Problem, ProblemCode

from .rules import ENGINES_OWN, Ceiling

_DEFAULTS = Limits()
# An engine takes the beginning of an id for the image, however short, if no image has that name.
_IMAGE_ID = re.compile(r"(sha256:.*|[0-9a-f]{1,64})")
EVERY_IMAGE = "*"
# Optional limits of which None means that there is none.
_UNBOUNDED = frozenset({"cpu_seconds_per_command", "idle_seconds", "network_bytes", "network_silent_seconds"})


def check_image(ceiling: Ceiling, image: str) -> None:
    """Raise Problem for an image that no pattern names, and for one that is named by its id or digest.

    Patterns are for names, which the operator may let mean another image; ids and digests would reach what they meant before.
    """
    if image.startswith(REPOSITORY):  # whatever the patterns say: it is its owner's alone
        if not ceiling.built or not image.startswith(f"{ceiling.built}:"):
            raise forbidden(f"The image {image!r:.150}", "Use one that was built for this tenant.")
        return
    if is_snapshot(image):
        raise forbidden(f"The image {image!r:.150}", "Create a sandbox from the snapshot, by the id that was answered for it.")
    if image in ceiling.images:
        return
    if _IMAGE_ID.fullmatch(image):
        hint = f"Use a name: one of {', '.join(ceiling.images)}. One that looks like an id needs a tag, as in {image[:12]}:latest."
        raise forbidden(f"The id of an image, {image!r:.80},", hint)
    if "@" in image:
        raise forbidden(f"The digest of an image, {image!r:.150},", f"Use a name: one of {', '.join(ceiling.images)}.")
    if not any(_is_image_of(pattern, image) for pattern in ceiling.images):
        raise forbidden(f"The image {image!r}", f"Use one of {', '.join(ceiling.images)}.")


def _is_image_of(pattern: str, image: str) -> bool:
    """Return whether a pattern names the image; its wildcards match no slash, so that they lead into no other registry.

    "*" alone names every image, and "**" as the last part all that is below the others.
    """
    if pattern == EVERY_IMAGE:
        return True
    parts, wanted = image.split("/"), pattern.split("/")
    if wanted[-1] == "**":
        wanted = wanted[:-1]
        parts = parts[: len(wanted)] if len(parts) > len(wanted) else []
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def check_profile(ceiling: Ceiling, profile: str) -> None:
    """Raise Problem for a profile that is not listed."""
    if profile not in ceiling.profiles:
        raise forbidden(f"The profile {profile!r}", f"Use one of {', '.join(ceiling.profiles)}.")


def chosen_runtime(ceiling: Ceiling, runtime: str | None) -> str | None:
    """Return the runtime as a spec has it, the first one that is listed if none was asked for. Raises Problem."""
    if runtime is not None and runtime not in ceiling.runtimes:
        raise forbidden(f"The runtime {runtime!r}", f"Use one of {', '.join(ceiling.runtimes)}.")
    found = runtime or ceiling.runtimes[0]
    return None if found == ENGINES_OWN else found


def chosen_limits(ceiling: Ceiling, asked: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits that were asked for; ``defaults`` stand for what was left out, and are cut. Raises Problem.

    None is a wish, too, where it means that there is no such limit; else it counts as left out.
    """
    wishes = {name: value for name, value in asked.items() if value is not None or name in _UNBOUNDED}
    found = {**asked, **defaults, **wishes}
    for name, most in _largest(ceiling).items():
        if name not in wishes:
            default = found.get(name) or getattr(_DEFAULTS, name)
            if (default is None and name in _UNBOUNDED) or _is_more(default, most):
                found[name] = _of_kind(name, most)
        elif (value := wishes[name]) is None or _is_more(value, most):
            raise forbidden(f"limits.{name} = {'null' if value is None else format(value, 'g')}", f"Ask for at most {most:g}.")
    return found


def chosen_life(ceiling: Ceiling, asked: float | None, default: float) -> float:
    """Return a time to live. Raises Problem if more is asked for than is allowed."""
    most = ceiling.most_time_to_live_seconds
    if asked is not None and asked > most:
        raise forbidden(f"A time to live of {asked:g} s", f"Ask for at most {most:g} s.")
    return min(asked or default, most)


def check_network(ceiling: Ceiling, network: Network) -> None:
    """Raise Problem for a network that opens more than is allowed. Which addresses are open is decided at each connection."""
    if network.mode == "none" or ceiling.network == "public":
        return
    if ceiling.network == "none":
        raise forbidden("A network", _allowed_hosts(ceiling))
    if network.mode != "allow":
        raise forbidden("A network without rules", f"Use mode 'allow'. {_allowed_hosts(ceiling)}")
    if wrong := next((rule for rule in network.rules if not _is_named(ceiling, rule)), None):
        raise forbidden(f"The rule {wrong.text!r}", _allowed_hosts(ceiling))


def check_services(ceiling: Ceiling, spec: SandboxSpec) -> None:
    """Raise Problem for a service whose upstream is more than is allowed; its address is judged at each connection."""
    for name, service in spec.services:
        if not isinstance(service, Service) or ceiling.network == "public":
            continue
        parts = urlsplit(service.upstream)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        rule = Rule.parse(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        if ceiling.network == "none" or not _is_named(ceiling, rule):
            raise forbidden(f"The upstream {rule.text!r} of the service {name!r}", _allowed_hosts(ceiling))


def narrowed_network(ceiling: Ceiling, network: Network) -> Network:
    """Return as much of a network as is allowed now."""
    if network.mode == "none" or ceiling.network == "public":
        return network
    if ceiling.network == "none":
        return Network.none()
    rules = tuple(rule for rule in network.rules if _is_named(ceiling, rule))
    return replace(network, mode="allow", rules=rules)


def narrowed(ceiling: Ceiling, spec: SandboxSpec) -> SandboxSpec:
    """Return a spec that was allowed once as it may be used for a new sandbox now: limits and network are cut.

    Raises Problem for what cannot be cut: image, profile, runtime.
    """
    check_parts(ceiling, spec)
    cut: dict[str, Any] = {
        name: _of_kind(name, most)
        for name, most in _largest(ceiling).items()
        if _is_more(value := getattr(spec.limits, name), most) or (value is None and name in _UNBOUNDED)
    }
    return replace(spec, limits=replace(spec.limits, **cut), network=narrowed_network(ceiling, spec.network))


def check_parts(ceiling: Ceiling, spec: SandboxSpec) -> None:
    """Raise Problem if image, profile or runtime of a spec are not allowed."""
    check_image(ceiling, spec.image)
    check_profile(ceiling, spec.profile)
    chosen_runtime(ceiling, spec.runtime or ENGINES_OWN)
    check_services(ceiling, spec)


def check_running(ceiling: Ceiling, spec: SandboxSpec) -> None:
    """Raise Problem for a sandbox that is there and has more than is allowed now, of what cannot be cut while it is there."""
    check_parts(ceiling, spec)
    for name, most in _largest(ceiling).items():
        value = getattr(spec.limits, name)
        if _is_more(value, most):
            raise forbidden(f"limits.{name} = {value:g} of this sandbox", "Fork it: a fork gets the limits that are allowed now.")


def forbidden(what: str, hint: str) -> Problem:
    """Return the problem of what the operator does not allow."""
    return Problem(403, ProblemCode.forbidden_by_operator, f"{what} is not allowed by the operator.", hint)


def encloses(outer: Rule, inner: Rule) -> bool:
    """Return whether ``outer`` opens every host and port that ``inner`` opens."""
    return _has_hosts(outer, inner) and not inner.without_ports(outer.ports)


def _has_hosts(outer: Rule, inner: Rule) -> bool:
    if outer.network is not None:
        inside = inner.network
        return inside is not None and inside.version == outer.network.version and _subnet(inside, outer.network)
    if not outer.name:  # every host; an address has to be named by an address
        return inner.network is None
    if inner.network is not None or not inner.name:
        return False
    if outer.below:
        return inner.name.endswith(f".{outer.name}") or (inner.below and inner.name == outer.name)
    return inner.name == outer.name and not inner.below


def _subnet(inner: Any, outer: Any) -> bool:
    return bool(inner.subnet_of(outer))


def _allowed_hosts(ceiling: Ceiling) -> str:
    named = ", ".join(ceiling.hosts) if ceiling.network == "named" else ""
    return f"The operator allows {named}." if named else "Leave it out: the operator does not allow any network."


def _largest(ceiling: Ceiling) -> dict[str, float]:
    """Return the largest values of limits: those of the operator, and for the others what the service itself bears."""
    return {**LARGEST, **ceiling.largest}


def _is_named(ceiling: Ceiling, rule: Rule) -> bool:
    return any(encloses(Rule.parse(text), rule) for text in ceiling.hosts)


def _is_more(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > most


def _of_kind(name: str, value: float) -> float | int:
    return value if name == "cpus" or "_seconds" in name else int(value)
