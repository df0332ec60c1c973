"""Options of queues and streams: validation of changes, and storage.

Several versions of Penstock may use one store. So only values that differ from the defaults are stored, and fields that
this version does not know are ignored when read and kept when written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from penstock.core.validation import to_invalid_input
from penstock.errors import InvalidInput, SchemaTooNew


class Options(Struct, frozen=True, kw_only=True):
    """A set of named options, each with a default."""

    def changed(self, changes: dict[str, Any]) -> Self:
        """Return these options with some replaced, after validation."""
        known = self.__struct_fields__
        for name in changes:
            if name not in known:
                raise InvalidInput(
                    f"unknown option {name!r}", field=str(name), hint=f"the options are {', '.join(known)}"
                )
        try:
            return msgspec.convert(msgspec.structs.asdict(self) | changes, type(self))
        except msgspec.ValidationError as error:
            raise to_invalid_input(error, "option") from None

    def differing(self, other: Self) -> list[str]:
        """Return the names of the options whose values differ in the other set."""
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]


T = TypeVar("T", bound=Options)


@cache
def _defaults(kind: type[Options]) -> dict[str, Any]:
    return msgspec.structs.asdict(kind())


def encode_options(options: Options, stored: str = "{}") -> str:
    """Return the JSON to store: values that differ from the defaults, and the unknown fields of `stored`."""
    defaults = _defaults(type(options))
    unknown = {name: value for name, value in msgspec.json.decode(stored).items() if name not in defaults}
    differing = {name: value for name, value in msgspec.structs.asdict(options).items() if value != defaults[name]}
    return msgspec.json.encode(unknown | differing).decode()


def reported_options(kind: type[T], values: dict[str, Any]) -> T:
    """Return options as a server reports them, which may be a newer one: unknown options are left out, values that
    this version would refuse are kept."""
    return kind(**{name: value for name, value in values.items() if name in kind.__struct_fields__})


def options_decoder(kind: type[T]) -> Callable[[str], T]:
    """Return a function that decodes stored options of this kind."""
    # Made before any thread uses it: threads that build a nested type's decoder at the same time can crash msgspec.
    decoder = msgspec.json.Decoder(kind)

    @lru_cache(maxsize=4096)
    def decode(text: str) -> T:
        try:
            return decoder.decode(text)
        except msgspec.ValidationError as error:
            raise SchemaTooNew(
                f"cannot read the stored options {text}: {to_invalid_input(error, 'option')}",
                hint="a newer version of Penstock wrote them: upgrade this process",
            ) from None

    return decode
