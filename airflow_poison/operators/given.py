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
    return tuple(kind if isinstance(kind, str) else _importable(kind) for kind in kinds)


def _importable(kind: type[BaseException]) -> str:
    if kind.__module__.startswith(("unusual_prefix_", "__main__")):
        raise SettingError("unprocessable", kind.__qualname__, "exception types of importable modules; in a DAG file raise Unprocessable instead")
    return name_of(kind)
