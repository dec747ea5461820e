"""Write the fields of a ``SandboxSpec`` as JSON-ready data, and read them again. Anybody may have written the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.network.rules import ALL_PORTS, WEB_PORTS, Rule, parse_pinned_name
from sandbox.packages.cache import PackageCache


def plain(value: Any) -> Any:
    """Return a value as JSON has it: whole numbers as integers, tuples as lists."""
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 60 and 60.0 are equal, and so are specs with them
    return list(value) if isinstance(value, tuple) else value


def _changed(value: Any, default: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from those of ``default``."""
    pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
    return {name: plain(each) for name, each in pairs if each != getattr(default, name, None)}


def _network_data(network: Network) -> dict[str, Any]:
    data: dict[str, Any] = {"mode": network.mode}
    if network.rules:
        data["rules"] = [{"rule": rule.text, "private": True} if rule.private else rule.text for rule in network.rules]
    if network.denied:
        data["denied"] = [rule.text for rule in network.denied]
    if network.exempt:
        data["exempt"] = [rule.text for rule in network.exempt]
    if network.names:
        data["names"] = {name: str(address) for name, address in network.names}
    if network.ask_seconds != Network.none().ask_seconds:
        data["ask_seconds"] = plain(network.ask_seconds)
    return data


def _services_data(services: tuple[tuple[str, Any], ...]) -> list[dict[str, Any]]:
    return [{"kind": type(service).__name__, "name": name, **_service_fields(service)} for name, service in services]


def _service_fields(service: Any) -> dict[str, Any]:
    from sandbox.network.services.side_service import Ready

    data = _changed(service, None)
    for name, default in (("limits", Limits()), ("ready", Ready())):
        if name in data:
            data[name] = _changed(data[name], default)
    return {name: value for name, value in data.items() if value not in (None, {}, [])}


def _cache_data(cache: PackageCache) -> dict[str, Any]:
    data = {f.name: plain(getattr(cache, f.name)) for f in fields(cache)}
    return {name: value for name, value in data.items() if value is not None}


TO_DATA: dict[str, Callable[[Any], Any]] = {
    "limits": lambda limits: _changed(limits, Limits()),
    "network": _network_data,
    "services": _services_data,
    "cache": lambda cache: None if cache is None else _cache_data(cache),
}


def type_name(value: object) -> str:
    """Return the type of a value that is not shown: it may be a secret."""
    return "null" if value is None else type(value).__name__


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"it must be a list, not {type_name(value)}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    for each in _list(value):
        if not isinstance(each, str):
            raise TypeError(f"it must be a list of texts, and one is {type_name(each)}")
    return tuple(value)


def _check_keys(value: Any, known: tuple[str, ...], what: str) -> None:
    """Refuse a key that would be ignored, such as a denial with a wrong name."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must be an object, not {type_name(value)}")
    if unknown := [key for key in value if key not in known]:
        raise ValueError(f"{what} has no {unknown[0]!r:.80}")


def _read_rule(written: Any, default: tuple[tuple[int, int], ...] = WEB_PORTS) -> Rule:
    if isinstance(written, Mapping):
        _check_keys(written, ("rule", "private"), "a rule")
        rule = replace(Rule.parse(written["rule"], default), private=written.get("private") is True)
        if rule.private and not rule.name and rule.network is None:
            raise ValueError(f"the rule {rule.text!r:.80} names every host, private ones among them")
        return rule
    return Rule.parse(written, default)


def _read_network(value: Any) -> Network:
    _check_keys(value, ("mode", "rules", "denied", "exempt", "names", "ask_seconds"), "it")
    mode = value["mode"]
    if mode not in ("none", "allow", "open", "bridge"):
        raise ValueError(f"its mode is {mode!r:.80}")
    if (mode in ("none", "bridge") and value.get("rules")) or (mode == "bridge" and value.get("denied")):
        raise ValueError(f"no rule holds with mode {mode!r}")
    plain: dict[str, Any] = {"ask_seconds": value["ask_seconds"]} if "ask_seconds" in value else {}
    return Network(
        mode,
        tuple(map(_read_rule, _list(value.get("rules", [])))),
        tuple(_read_rule(text, ALL_PORTS) for text in _list(value.get("denied", []))),
        exempt=tuple(Rule.parse(text, ALL_PORTS) for text in _list(value.get("exempt", []))),
        names=tuple(parse_pinned_name(name, address) for name, address in value.get("names", {}).items()),
        **plain,
    )


def _read_services(value: Any) -> tuple[tuple[str, Any], ...]:
    from sandbox.network.services.service import Service
    from sandbox.network.services.side_service import Ready, SideService

    found: list[tuple[str, Any]] = []
    for written in _list(value):
        given = dict(written)
        kind, name = given.pop("kind"), given.pop("name")
        if not isinstance(name, str) or name in dict(found):
            raise ValueError("a service has no name of its own")
        if kind == "Service":
            tuples: dict[str, Any] = {key: _texts(given.pop(key)) for key in ("methods", "paths") if key in given}
            found.append((name, Service(name, **tuples, **given)))
        elif kind == "SideService":
            read: dict[str, Any] = {
                key: make(**given.pop(key)) for key, make in (("limits", Limits), ("ready", Ready)) if key in given
            }
            read |= {
                key: make(given.pop(key))
                for key, make in (("ports", tuple), ("command", _texts))
                if isinstance(given.get(key), list)
            }
            found.append((name, SideService(**read, **given)))
        else:
            raise ValueError(f"a service is of the kind {kind!r:.80}")
    return tuple(found)


def _read_cache(value: Any) -> PackageCache | None:
    if value is None:
        return None
    options: dict[str, Any] = {name: _texts(each) if name == "private_hosts" else each for name, each in value.items()}
    for name in ("directory", "pypi", "npm", "ca_bundle"):
        if not isinstance(options.get(name, ""), str):
            raise TypeError(f"its {name} must be str, not {type_name(options[name])}")
    return PackageCache(**options)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"it must be a number, not {type_name(value)}")
    if not math.isfinite(value):
        raise ValueError(f"it is {value}, which JSON does not have")
    return value


READERS: dict[str, Callable[[Any], Any]] = {
    "limits": lambda value: Limits(**value),
    "network": _read_network,
    "services": _read_services,
    "cache": _read_cache,
    "env": _texts,
    "read_roots": _texts,
    "beside": _texts,
    "keep_seconds": _number,
}
