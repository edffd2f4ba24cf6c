"""Protected jobs whose process is killed at random: in the end each row of the source has landed, was filtered, or is one message."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_poison import DeltaChanges, Files, Msmq4, Store, protect
from airflow_poison.spark import in_place
from airflow_poison.store.past import read_past

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.campaign, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
KILLS = int(os.environ.get("POISON_IN_PLACE_KILLS", "50"))
LONGEST = float(os.environ.get("POISON_IN_PLACE_SECONDS", "6"))
"""So many seconds a process may live behind its start."""
ROWS = 40
POLICY = Msmq4(receive_retry_count=5, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(seconds=60))
"""A message that is alone with the transformation when everything dies is charged: it may be what ends Spark. So a kill may cost it a delivery."""


def checked(df: DataFrame) -> DataFrame:
    """Filter every tenth row; every 17th fails."""
    return df.where("id % 10 > 0").selectExpr("id", "cast(if(id % 17 = 3, 'bad', text) AS int) AS number")


def expected(rows: int) -> tuple[list[int], list[int], int]:
    """Return which rows land, which become messages, and how many are filtered."""
    kept = [each for each in range(rows) if each % 10]
    return [each for each in kept if each % 17 != 3], [each for each in kept if each % 17 == 3], rows - len(kept)


# What is killed -------------------------------------------------------------------------------------------------------


def attached() -> SparkSession:
    """Return a session of the Spark that runs in the JVM of the test."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    running = jvm.org.apache.spark.SparkContext.getOrCreate()
    conf = SparkConf(_jconf=running.getConf())
    return SparkSession(SparkContext(conf=conf, jsc=jvm.org.apache.spark.api.java.JavaSparkContext(running)))


def work(kind: str, folder: str, rounds: str) -> None:
    """Run the job so many times. A run that was killed is begun again with its key, as Airflow and Spark begin it."""
    spark = attached()
    print("ready", flush=True)  # noqa: T201  (read by the test)
    for _ in range(int(rounds)):
        KINDS[kind][1](Path(folder), spark)


def received(folder: Path, spark: SparkSession, source: Any, transform: Callable[[DataFrame], DataFrame] = checked, **more: Any) -> None:
    done = folder / "done"
    number = int(done.read_text()) if done.exists() else 0
    queue, output = Store(str(folder / "store")).queue("orders"), str(folder / "clean")
    queue.receive(None, POLICY, key=f"round {number}", spark=spark, transform=transform, source=source, output=output, **more)
    (folder / "new").write_text(str(number + 1))
    (folder / "new").replace(done)


def of_files(folder: Path, spark: SparkSession) -> None:
    received(folder, spark, Files(f"{folder}/in/*.parquet", format="parquet", settled=timedelta(0)))


def as_a_whole(df: DataFrame) -> DataFrame:
    """Do the same by a plan that fails as a whole."""
    below = df.selectExpr("id", "cast(if(id % 17 = 3 AND id % 10 > 0, 'bad', text) AS int) AS number").repartition(2)
    return below.where("id % 10 > 0")


def of_pieces(folder: Path, spark: SparkSession) -> None:
    """Have pieces of rows transformed, down to one row."""
    in_place.FEW = in_place.LEAST = 1
    received(folder, spark, DeltaChanges(str(folder / "raw")), transform=as_a_whole)


def of_delta(folder: Path, spark: SparkSession) -> None:
    received(folder, spark, DeltaChanges(str(folder / "raw")))


def of_kafka(folder: Path, spark: SparkSession) -> None:
    """Read the topic that tests/live has made."""
    from airflow_poison import Kafka

    topic = json.loads((folder / "topic.json").read_text())
    received(folder, spark, Kafka(topic["name"], connection=topic["settings"]), schema="id bigint, text string")


def of_stream(folder: Path, spark: SparkSession) -> None:
    take = protect("orders", store=str(folder / "store"), policy=POLICY, transform=checked, output=str(folder / "clean"))
    stream = spark.readStream.schema("id bigint, text string").option("maxFilesPerTrigger", 2).parquet(str(folder / "in"))
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint")).queryName("protected")
    writer.trigger(availableNow=True).start().awaitTermination()


# What comes in --------------------------------------------------------------------------------------------------------


def more(number: int) -> pa.Table:
    ids = range(ROWS * number, ROWS * (number + 1))
    return pa.table({"id": pa.array(ids, pa.int64()), "text": [str(each) for each in ids]})


def a_file(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(more(number), folder / f"{number}.parquet")
    (folder / f"{number}.parquet").rename(folder / "in" / f"{number}.parquet")


def records(folder: Path, number: int) -> None:
    from confluent_kafka import Producer

    topic = json.loads((folder / "topic.json").read_text())
    producer = Producer(topic["settings"])
    for row in more(number).to_pylist():
        producer.produce(topic["name"], json.dumps(row), partition=row["id"] % 2)
    assert producer.flush(20) == 0


def a_version(folder: Path, number: int) -> None:
    write_deltalake(str(folder / "raw"), more(number), mode="append")


KINDS: dict[str, tuple[Callable[[Path, int], None], Callable[[Path, SparkSession], None]]] = {
    "files": (a_file, of_files),
    "delta": (a_version, of_delta),
    "pieces": (a_version, of_pieces),
    "foreachBatch": (a_file, of_stream),
    "kafka": (records, of_kafka),
}


# The test -------------------------------------------------------------------------------------------------------------


def started(kind: str, folder: Path, spark: SparkSession, rounds: int) -> subprocess.Popen[str]:
    gateway: Any = spark.sparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    env = {**os.environ, "PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.auth_token}
    code = f"import sys; from {__name__} import work; work(*sys.argv[1:])"
    command = [sys.executable, "-W", "ignore", "-c", code, kind, str(folder), str(rounds)]
    with (folder / "errors").open("a") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env, start_new_session=True)


def ledger(root: str) -> Counter[str]:
    """Return the sums of the counts of all commits; where all rows became messages, there is no other count."""
    total = Counter[str]()
    for entry in read_past(root).entries:
        said = {name.partition(":")[0]: number for name, number in entry.numbers.items() if entry.operation == "append"}
        total.update({"messages": said.get("send", 0), "read": said.get("read", said.get("send", 0))})
        total.update({name: said.get(name, 0) for name in ("landed", "filtered")})
    return total


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "kafka"])
def test_rows_are_there_once_whenever_the_process_is_killed(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    kill_again_and_again(kind, tmp_path, spark)


def kill_again_and_again(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    table = Store(str(tmp_path / "store")).declare("orders", POLICY).table
    add, kills, batches, chance = KINDS[kind][0], 0, 0, random.Random(7)
    while kills < KILLS:
        add(tmp_path, batches)
        batches += 1
        with started(kind, tmp_path, spark, 1_000) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", (tmp_path / "errors").read_text()[-3_000:]
            time.sleep(chance.uniform(0, LONGEST))
            kills += process.poll() is None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    with started(kind, tmp_path, spark, 2) as process:
        assert process.wait(600) == 0, (tmp_path / "errors").read_text()[-3_000:]

    landed, failed, filtered = expected(batches * ROWS)
    there = sorted(row["id"] for row in DeltaTable(str(tmp_path / "clean")).to_pyarrow_table().to_pylist())
    messages = sorted(json.loads(row["body"])["id"] for file in table.snapshot().files for row in table.read(file).to_pylist())
    assert there == landed
    assert messages == failed
    assert Store(str(tmp_path / "store")).queue("orders").check().findings == ()
    counts = ledger(table.root)
    assert counts["read"] == batches * ROWS == counts["landed"] + counts["filtered"] + counts["messages"]
    assert counts["filtered"] <= filtered, "rows of a job that was broken off twice become messages, which may make no row"
    print(f"{kind}: {kills} kills, {batches * ROWS} rows = {counts}")  # noqa: T201  (the campaign's figures)
