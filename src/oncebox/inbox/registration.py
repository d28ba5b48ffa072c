"""Register handlers, upcasters and ignored types with an inbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from oncebox.errors import HandlerError
from oncebox.model.ordering import Ordering
from oncebox.model.retry import Retry
from oncebox.processing.handlers import Registry

F = TypeVar("F", bound=Callable[..., Any])


class Registration:
    """The decorators of an inbox: which function handles which messages."""

    _registry: Registry

    def on(
        self,
        type: str,
        *,
        version: int = 1,
        batch: bool = False,
        retry: Retry | None = None,
        ordering: Ordering | None = None,
    ) -> Callable[[F], F]:
        """Register a handler for messages of a type and version; "*" takes all other types.

        The handler takes `(payload)` or `(payload, tx)`; its annotation says what the payload is
        decoded into. With `batch`, it takes a list of payloads.
        """
        if callable(type):
            name = getattr(type, "__name__", repr(type))
            raise HandlerError(f'on() needs a message type: write @inbox.on("...") above {name}')

        def register(function: F) -> F:
            self._registry.add(function, type, version, batch=batch, retry=retry, ordering=ordering)
            return function

        return register

    def upcast(self, type: str, *, from_version: int) -> Callable[[F], F]:
        """Register a function that converts decoded JSON from one version of a type to the next."""

        def register(function: F) -> F:
            self._registry.add_upcaster(function, type, from_version)
            return function

        return register

    def ignore(self, *types: str) -> None:
        """Ignore messages of these types: they are acked and counted, and leave no row."""
        self._registry.ignore(*types)
