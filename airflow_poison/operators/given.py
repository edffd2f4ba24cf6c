"""Names of what a DAG file gives as objects: handlers, for people; exception types, for other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_poison.core.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable


def name_of(thing: object) -> str:
    """Return ``module:name``."""
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def importable_types(kinds: Iterable[str | type[BaseException]]) -> tuple[str, ...]:
    """Return the names of exception types that server sessions can import. Raises SettingError for one of a DAG file."""
    if isinstance(kinds, str | type):
        raise SettingError("unprocessable", kinds, "a list of exception types, or of their names as 'module:Type'")
    return tuple(kind if isinstance(kind, str) else _importable(kind) for kind in kinds)


def whole(parameter: str, given: int | str) -> int:
    """Return a number that is given, or what a template leaves of one. Raises SettingError."""
    try:
        return int(given)
    except (TypeError, ValueError):
        raise SettingError(parameter, given, "a whole number, or text of one") from None


def _importable(kind: type[BaseException]) -> str:
    if not isinstance(kind, type):
        raise SettingError("unprocessable", kind, "exception types, not exceptions, or names as 'module:Type'")
    if kind.__module__.startswith(("unusual_prefix_", "__main__")):
        raise SettingError("unprocessable", kind.__qualname__, "exception types of importable modules; in a DAG file raise Unprocessable instead")
    return name_of(kind)
