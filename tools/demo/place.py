"""Where the demo keeps its things, and the environment of the Airflow that it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.airflow.home import AirflowError, Home

if TYPE_CHECKING:
    from collections.abc import Mapping

CLONE = Path(__file__).resolve().parents[2]


class DemoError(AirflowError):
    """The demo cannot go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Place(Home):
    """The folder of the demo; everything it writes is below it."""

    path: Path = CLONE / ".demo"

    @property
    def flights(self) -> Path:
        """The folder of the DAG's own files."""
        return self.path / "flights"

    @property
    def alerts(self) -> Path:
        """What was alerted, a line each."""
        return self.flights / "alerts.jsonl"

    def shown(self, path: Path | str) -> str:
        """Return a path as the reader of a terminal in the clone would type it, and a URI as it is."""
        return str(path).removeprefix("file://").removeprefix(f"{CLONE}/")

    def demo_environment(self, port: int, delay: float, every: int, others: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the services.

        :param delay: the retry cycle delay in seconds.
        :param every: use every n-th flight.
        :param others: further variables, those of the tables.
        """
        settings = {
            "CORE__DAGS_FOLDER": str(CLONE / "dags"),
            "CORE__PARALLELISM": "2",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",  # it listens on loopback only
            "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        }
        flights = {"FLIGHTS_HOME": str(self.flights), "FLIGHTS_RETRY_CYCLE_DELAY": f"{delay:g}", "FLIGHTS_EVERY": str(every)}
        return self.environment(port, settings, {**flights, **(others or {})})
