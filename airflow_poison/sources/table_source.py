"""What sources have in common that read a table of a database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_poison.sources.source import Source
from airflow_poison.values.errors import SettingError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from airflow_poison.sources.database import Reading
    from airflow_poison.sources.decoding import Schema
    from airflow_poison.sources.source import Connection, JsonValue


@dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """A table of a database. ``address`` is what the connection's id stands for."""

    connection: str = field(kw_only=False, repr=False)
    table: str = field(kw_only=False)
    order_by: str = field(kw_only=False)
    name: str = ""
    schema: Schema | None = None
    address: str = field(default="", repr=False)

    columns = True

    def __post_init__(self) -> None:
        for setting, wanted in (
            ("connection", "an SQLAlchemy URL, or the id of a connection"),
            ("table", "the name of a table or view: orders, shop.orders"),
            ("order_by", "the name of a column"),
        ):
            if not isinstance(value := getattr(self, setting), str) or not value.strip():
                raise SettingError(setting, "…" if setting == "connection" else value, wanted)
        object.__setattr__(self, "name", self.name or f"{_without_credentials(self.connection)}:{self.table}")

    def connected(self, find: Callable[[str], Connection]) -> Source:
        """Return the source with the address of its connection. Raises SourceError when there is none."""
        if "://" in self.connection:
            return self
        from airflow_poison.sources.database import address_of

        return replace(self, address=address_of(find(self.connection)))

    @property
    def asset_uri(self) -> str:
        """Server, database, schema and table, as Airflow's own providers name them: ``postgres://host:5432/shop/public/orders``."""
        from airflow_poison.sources.database import asset_uri_of

        return asset_uri_of(self.address or self.connection, self.table)

    def opened(self) -> AbstractContextManager[Reading]:
        """Have the table open. Raises SourceError."""
        from airflow_poison.sources.database import opened

        said = f"Table {self.table!r} of source {self.name!r}"
        if not self.address and "://" not in self.connection:
            raise SourceError(f"{said}: nobody has looked up connection {self.connection!r}. Give an SQLAlchemy URL. Nothing was sent.")
        return opened(self.address or self.connection, self.table, said)

    def check_position(self, at: Mapping[str, JsonValue], **settings: JsonValue) -> None:
        """Raise SourceError when a position was reached with other settings."""
        for setting, value in settings.items():
            if at and at.get(setting) != value:
                raise SourceError(
                    f"{setting}={value!r}: source {self.name!r} was taken with {setting}={at.get(setting)!r} so far, and its position says nothing "
                    "else. "
                    f"Declare {setting}={at.get(setting)!r} again, give it another name=, or reset its position: then all rows are taken again. "
                    "Nothing was sent."
                )


def _without_credentials(connection: str) -> str:
    """Return an address without user, password and options; the id of a connection as it is."""
    if "://" not in connection:
        return connection
    found = urlsplit(connection)
    return f"{found.scheme.partition('+')[0]}://{found.netloc.rpartition('@')[2]}{found.path}"
