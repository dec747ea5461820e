"""Environments around others, which change what a subclass overrides and forward everything else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from agent.core.loop.layers import Layer
from agent.core.loop.turns import Call, entered
from sandbox import operations as op
from sandbox.envelope import Envelope, Failure
from sandbox.environment.base import ActionLike, Approver, Environment
from sandbox.environment.parts.secrets import Secrets
from sandbox.operations import Request
from sandbox.pipe.watching import Watch
from sandbox.state.methods import StateMethods


class WrappedEnvironment(Environment):
    """Forwards to ``inner``, also attributes that only its class has; subclasses override what they change.

    Operations called as methods (``read``, ``run`` ...) go through ``execute``, those of an agent through ``execute_action``.
    """

    def __init__(self, inner: Environment) -> None:
        self.inner = inner

    @property
    def approver(self) -> Approver | None:
        return self.inner.approver

    @approver.setter
    def approver(self, approver: Approver | None) -> None:
        self.inner.approver = approver

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        return self.inner.execute_action(action, args)

    def execute(self, operation: str, args: Mapping[str, Any], *, watch: Watch | None = None) -> Envelope[Any]:
        return self.inner.execute(operation, args, watch=watch)

    def validated(self, operation: str, args: Mapping[str, Any]) -> Request | Failure[Any]:
        return self.inner.validated(operation, args)

    def perform(self, request: Request, watch: Watch | None = None) -> Envelope[Any]:
        return self.inner.perform(request) if watch is None else self.inner.perform(request, watch)

    def _summary(self) -> tuple[str, ...]:
        return ("around", repr(self.inner))

    @property
    def hidden(self) -> Secrets:
        return self.inner.hidden

    def secret(self, name: str, value: str, *, always: bool = True) -> None:
        self.inner.secret(name, value, always=always)

    def upload(
        self, data_or_path: bytes | str | os.PathLike[str], path: str, **options: Any
    ) -> Envelope[op.UploadResult]:
        return self.inner.upload(data_or_path, path, **options)

    def download(
        self, path: str, to: str | os.PathLike[str] | None = None, *, without: Sequence[str] = (), overwrite: bool = False
    ) -> Envelope[op.DownloadResult]:
        return self.inner.download(path, to, without=without, overwrite=overwrite)

    def service_logs(self, name: str, **options: Any) -> Envelope[op.LogsResult]:
        return self.inner.service_logs(name, **options)

    def describe(self) -> dict[str, str]:
        return self.inner.describe()

    def start(self) -> Self:
        self.inner.start()
        return self

    def pause(self) -> None:
        self.inner.pause()

    def resume(self) -> None:
        self.inner.resume()

    def close(self, *, wait: bool = False) -> None:
        self.inner.close(wait=True) if wait else self.inner.close()  # an inner one of others may know no ``wait``

    def remove(self) -> None:
        self.inner.remove()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that only the class of ``inner`` has: ``forward``, ``network``, ``resume`` ..."""
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class LayeredEnvironment(WrappedEnvironment):
    """``inner`` with a layer around ``execute_action``, for callers without a run.

    If it is the environment of an agent, the agent's runs take ``layer`` among their own layers, and work in ``inner``.
    """

    def __init__(self, inner: Environment, layer: Layer) -> None:
        super().__init__(inner)
        self.layer = layer

    def execute_action(self, action: ActionLike, args: Any) -> dict[str, Any]:
        args = {} if args is None else args
        if not isinstance(args, Mapping) or not isinstance(getattr(action, "name", None), str):
            return self.inner.execute_action(action, args)  # which refuses it
        known: Any = action
        flow = self.layer.around_do(Call(tool=action.name, args=args, action=known))
        try:
            call = next(flow)
            while True:
                try:
                    with entered(call.within):
                        envelope = self.inner.execute_action(call.action, call.args)
                except BaseException as error:  # noqa: BLE001 - the layer decides
                    call = flow.throw(error)
                else:
                    call = flow.send(envelope)
        except StopIteration as end:
            answer: dict[str, Any] = end.value
            return answer


def _inner(name: str) -> Any:
    def call(self: WrappedEnvironment, *args: Any, **options: Any) -> Any:
        return getattr(self.inner, name)(*args, **options)

    call.__name__, call.__doc__ = name, getattr(StateMethods, name).__doc__
    return call


for _name in vars(StateMethods):
    if not _name.startswith("_"):
        setattr(WrappedEnvironment, _name, _inner(_name))
