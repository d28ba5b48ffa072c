"""Handlers: the functions that users register, found by type and version."""

from __future__ import annotations

import inspect
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from oncebox.errors import (
    ConfigurationError,
    HandlerError,
    PayloadTooLarge,
    Undecodable,
    UnknownType,
    UnknownVersion,
)
from oncebox.model.message import Message
from oncebox.model.ordering import Ordering
from oncebox.model.retry import Retry
from oncebox.processing import decoding
from oncebox.processing.around import Hook, hook_of
from oncebox.processing.signatures import Function, name_of, plain_function, read_signature

ANY_TYPE = "*"


class Handler(msgspec.Struct, frozen=True, eq=False):
    """A function for the messages of one type and version."""

    function: Function
    type: str
    version: int
    shape: decoding.Shape
    batch: bool
    takes_tx: bool
    retry: Retry
    ordering: Ordering


def checked_retry(retry: Any) -> Retry:
    """Return the retry policy. Raises ConfigurationError if it is something else."""
    if not isinstance(retry, Retry):
        raise ConfigurationError(f"retry must be Retry(max_attempts=...), got {retry!r}")
    return retry


def checked_ordering(ordering: Any) -> Ordering:
    """Return the ordering. Raises ConfigurationError if it is something else."""
    try:
        return Ordering(ordering)
    except ValueError:
        raise ConfigurationError(
            f"ordering must be Ordering.strict or Ordering.skip_dead, got {ordering!r}"
        ) from None


class Route(msgspec.Struct, frozen=True):
    """A handler, and the upcasters that convert a payload to the version it takes."""

    handler: Handler
    upcasters: tuple[Function, ...] = ()

    def decode(self, message: Message) -> Any:
        """Decode a payload into the type that the handler takes. Raises Undecodable."""
        if not self.upcasters:
            decode = self.handler.shape.decode
            return message if decode is None else decode(message.payload)
        value = decoding.plain(message)
        for upcast in self.upcasters:
            try:
                value = upcast(value)
            except Exception as error:
                raise Undecodable(
                    f"upcaster {name_of(upcast)} failed: {type(error).__name__}: {error}"
                ) from error
        return self.handler.shape.convert(value)


class Registry:
    """All handlers, upcasters and ignored types of an inbox."""

    def __init__(
        self, *, retry: Retry, ordering: Ordering, payload_limit: int, ignore_unknown: bool = False
    ) -> None:
        self._ignore_unknown = ignore_unknown
        self._retry = retry
        self._ordering = ordering
        self._payload_limit = payload_limit
        self._handlers: dict[tuple[str, int], Handler] = {}
        self._upcasters: dict[tuple[str, int], Function] = {}
        self._ignored: list[str] = []
        self.around: list[Hook] = []
        """What runs around each handler, in the order of registration."""
        self._routes: dict[tuple[str, int], Route] = {}
        self.is_checked = False
        """True once check() has found the handlers complete."""
        self.is_async: bool | None = None
        self._because = ""

    @property
    def types(self) -> list[str]:
        """The types that have a handler, sorted."""
        return sorted({type_ for type_, _ in self._handlers})

    # -- registration -------------------------------------------------------------------------

    def add(
        self,
        function: Function,
        type_: str,
        version: int,
        *,
        batch: bool = False,
        retry: Retry | None = None,
        ordering: Ordering | None = None,
    ) -> None:
        """Register a handler. Raises HandlerError if it could never run."""
        name = name_of(function)
        _check_type(type_, name)
        if "*" in type_ and type_ != ANY_TYPE:
            raise HandlerError(
                f'{name}: on() takes one type or "*", got {type_!r}; patterns are for ignore()'
            )
        _check_version(version, name)
        if (known := self._handlers.get((type_, version))) is not None:
            raise HandlerError(
                f"{type_!r} version {version} already has the handler {name_of(known.function)}: "
                f"{name} would never run"
            )
        annotation, takes_tx = read_signature(function, batch=batch)
        shape = decoding.shape_of(annotation)
        self._check_async(function)
        self._handlers[type_, version] = Handler(
            function=function,
            type=type_,
            version=version,
            shape=shape,
            batch=batch,
            takes_tx=takes_tx,
            retry=self._retry if retry is None else checked_retry(retry),
            ordering=self._ordering if ordering is None else checked_ordering(ordering),
        )
        self._changed()

    def add_upcaster(self, function: Function, type_: str, from_version: int) -> None:
        """Register a function that converts plain values from one version to the next."""
        _check_type(type_, name_of(function))
        _check_version(from_version, name_of(function))
        if inspect.iscoroutinefunction(plain_function(function)):
            raise HandlerError(f"upcaster {name_of(function)} must be a plain function, not async")
        if (type_, from_version) in self._upcasters:
            raise HandlerError(f"{type_!r} version {from_version} already has an upcaster")
        self._upcasters[type_, from_version] = function
        self._changed()

    def add_around(self, function: Function) -> None:
        """Register a generator function that runs around each handler."""
        hook, is_async = hook_of(function)
        self.set_async(is_async, f"hook {name_of(function)}")
        self.around.append(hook)

    def _changed(self) -> None:
        self._routes.clear()
        self.is_checked = False

    def check(self, consumer: str) -> None:
        """Raise ConfigurationError if there is no handler, or an upcaster leads to none."""
        if not self._handlers:
            raise ConfigurationError(f"inbox {consumer!r} has no handlers: register one with on()")
        for type_, version in self._upcasters:
            self._check_upcaster(type_, version)
        self.is_checked = True

    def _check_upcaster(self, type_: str, version: int) -> None:
        to = version + 1
        if (type_, to) not in self._handlers and (type_, to) not in self._upcasters:
            raise HandlerError(
                f"upcaster {name_of(self._upcasters[type_, version])} converts {type_!r} to "
                f"version {to}, but version {to} has neither a handler nor an upcaster: register "
                "one of them"
            )

    def ignore(self, *patterns: str) -> None:
        """Ignore these types. A pattern such as `audit.*` matches all types that begin with it."""
        for pattern in patterns:
            _check_type(pattern, "ignore")
            if not pattern.strip("*?"):
                raise HandlerError(f"ignore({pattern!r}) would drop every message: name the types")
        self._ignored += patterns

    def take_over(self, other: Registry) -> None:
        """Copy everything that is registered there; handlers with defaults get those here."""
        for place, handler in other._handlers.items():
            retry = self._retry if handler.retry is other._retry else handler.retry
            has_default = handler.ordering is other._ordering
            ordering = self._ordering if has_default else handler.ordering
            self._handlers[place] = msgspec.structs.replace(handler, retry=retry, ordering=ordering)
        self._upcasters.update(other._upcasters)
        self._ignored += other._ignored
        self.around += other.around
        if other.is_async is not None:
            self.set_async(other.is_async, other._because)
        self._changed()

    def set_async(self, is_async: bool, because: str) -> None:
        """Make the inbox sync or async. Raises HandlerError if it is already the other."""
        if self.is_async is None:
            self.is_async = is_async
            self._because = because
        if self.is_async is not is_async:
            known = _sync_or_async(self.is_async)
            raise HandlerError(
                f"{because} is {_sync_or_async(is_async)}, but {self._because} is {known}: all of "
                f"an inbox must be {known} (handlers, database, and process() or aprocess())"
            )

    def check_call(self, is_async: bool, owner: str, call: str) -> None:
        """Raise HandlerError, naming the right call, if this one is sync and the inbox async, or
        the reverse."""
        if self.is_async is (not is_async):
            right = f"{owner}.{call}" if is_async else f"await {owner}.a{call}"
            known = _sync_or_async(self.is_async)
            raise HandlerError(f"{self._because} is {known}: call {right}")
        self.set_async(is_async, f"a{call}" if is_async else call)

    def _check_async(self, function: Function) -> None:
        called = plain_function(function)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise HandlerError(
                f"handler {name_of(function)} is a generator and would never run: remove `yield`"
            )
        self.set_async(inspect.iscoroutinefunction(called), f"handler {name_of(function)}")

    # -- routing ------------------------------------------------------------------------------

    def ignores(self, message: Message) -> bool:
        """Whether messages of this type are ignored: acked and counted, without a row."""
        if not self._ignored and not self._ignore_unknown:
            return False
        types = {known for known, _ in self._handlers}
        if message.type in types:  # it has a handler, which is more specific than a pattern
            return False
        if any(fnmatchcase(message.type, pattern) for pattern in self._ignored):
            return True
        return self._ignore_unknown and ANY_TYPE not in types

    def route(self, message: Message) -> Route:
        """Find the handler of a message. Raises PayloadTooLarge, UnknownType or UnknownVersion."""
        if len(message.payload) > self._payload_limit:
            raise PayloadTooLarge(
                f"the payload has {len(message.payload):,} bytes, payload_limit of the inbox is "
                f"{self._payload_limit:,}: raise it, or let the producer send a reference"
            )
        wanted = (message.type, message.version)
        route = self._routes.get(wanted)
        if route is None:
            route = self._find(*wanted)
            # Producers choose the types, so only those with a handler of their own are cached.
            if route.handler.type != ANY_TYPE:
                self._routes[wanted] = route
        return route

    def _find(self, type_: str, version: int) -> Route:
        chain: list[Function] = []
        at = version
        while (handler := self._handlers.get((type_, at))) is None:
            upcaster = self._upcasters.get((type_, at))
            if upcaster is None:
                return self._catch_all(type_, version)
            chain.append(upcaster)
            at += 1
        return Route(handler, tuple(chain))

    def _catch_all(self, type_: str, version: int) -> Route:
        known = sorted(v for t, v in self._handlers if t == type_)
        if known:
            versions = ", ".join(map(str, known))
            raise UnknownVersion(
                f"no handler for {type_!r} with version {version or '(not a number)'}; "
                f"handlers take version {versions}: register a handler for it, or an upcaster"
            )
        for (candidate, _), handler in self._handlers.items():
            if candidate == ANY_TYPE:
                return Route(handler)
        raise UnknownType(
            f"no handler for type {type_!r}: register one with on(), or call ignore({type_!r})"
            if type_
            else "the message has no type: identity= of the inbox says where it is"
        )


def check_result(handler: Handler, result: Any) -> None:
    """Raise HandlerError if a handler returned a coroutine or generator, which would not run."""
    if inspect.isawaitable(result) or inspect.isgenerator(result):
        if hasattr(result, "close"):
            result.close()
        raise HandlerError(
            f"handler {name_of(handler.function)} returned a {type(result).__name__}, "
            "which does not run. Define the handler with async def, or as a plain function"
        )


def _check_type(type_: str, name: str) -> None:
    if not isinstance(type_, str) or not type_:
        raise HandlerError(f"{name}: a message type must be a non-empty str, got {type_!r}")


def _check_version(version: int, name: str) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise HandlerError(f"{name}: a version must be an int of at least 1, got {version!r}")


def _sync_or_async(is_async: bool) -> str:
    return "async" if is_async else "sync"
