"""Schemas of a source: the format of a record's bytes, and the body made of them. A record that does not fit is a message with an error."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.sources.source import Connection


class Schema(ABC):
    """What bodies of records have to be. Making one reads nothing and imports nothing heavy; it can be pickled."""

    @abstractmethod
    def decode(self, body: bytes) -> bytes:
        """Return the message's body: the same bytes, or what was decoded as JSON. Raises MalformedError, which says what is wrong."""

    def connected(self, find: Callable[[str], Connection]) -> Schema:
        """Return the schema with the connections that it names looked up; itself when it names none."""
        del find
        return self
