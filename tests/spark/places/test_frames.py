"""Transformations on ``local[2]``, on a real standalone cluster with two workers, and on a real Spark Connect server: the same comes out."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

from airflow_poison import Store, protect
from airflow_poison.delivery.handlers import Transformation
from airflow_poison.outputs.output import outputs_of
from airflow_poison.sources.files import Files
from airflow_poison.spark import in_place
from airflow_poison.spark.executors import Executors, own_package
from airflow_poison.spark.units import UNFIT
from airflow_poison.values.errors import TransformError
from tests.given import transforms
from tests.given.drivers import POLICY
from tests.given.transforms import SCHEMA, bodies
from tests.spark.places.place import CONNECT, session
from tests.spark.places.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.passes.receive import ReceivePass
    from airflow_poison.rules.policy import Policy
    from tests.spark.places.place import Place

MESSAGES = 60
ONCE = replace(POLICY, receive_retry_count=0, transaction_timeout=timedelta(minutes=1))
CAST = Transformation(transforms.cast, SCHEMA)


@dataclass(frozen=True)
class Transforming(Task):
    """A task with a transformation, whose rows land.

    :param columns: of the output.
    """

    policy: Policy = ONCE
    transformation: Transformation = CAST
    columns: str | None = None

    def a_pass(self, *, late: bool = False) -> ReceivePass:
        """A pass over the queue, in a driver."""
        outputs = outputs_of(self.output, schema=self.columns, provenance=self.transformation.function is transforms.verdict)
        return replace(super().a_pass(late=late), handler=self.transformation, outputs=outputs)

    @property
    def output(self) -> str:
        """The table where its rows land."""
        return f"{self.written_to or self.root}.landed"

    def landed(self) -> list[int]:
        """The messages whose rows have landed, each as often as it did."""
        from deltalake import DeltaTable

        return sorted(cast("list[int]", DeltaTable(self.output).to_pyarrow_table()["id"].to_pylist()))

    def errors(self) -> Counter[str]:
        """How often messages in the queue failed with each kind of error."""
        return Counter(row["last_error"]["type"] for row in self.rows().values())  # type: ignore[index]  # a struct


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def all_but(*culprits: int) -> list[int]:
    return sorted({*range(1, MESSAGES + 1)} - {*culprits})


def cast_amount(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "cast(amount AS int) AS amount")


def protected(root: str) -> Mapping[str, int]:
    """Protect a job in the session of a driver; one of its 20 rows fails."""
    frame = session().range(20).selectExpr("id", "if(id = 7, 'bad', cast(id AS string)) AS amount")
    return protect(frame, "orders", key="one", store=f"{root}/queues", policy=ONCE, transform=cast_amount, output=f"{root}/clean").in_place


def test_a_job_is_protected_wherever_spark_is(place: Place, root: str) -> None:
    counts = [place.call(protected, root) for _ in range(2)]

    assert counts == [{"read": 20, "landed": 19, "filtered": 0, "messages": 1}] * 2
    landed: list[Any] = DeltaTable(f"{root}/clean").to_pyarrow_table()["id"].to_pylist()
    assert sorted(landed) == [each for each in range(20) if each != 7]
    queue = Store(f"{root}/queues").queue("orders")
    [failed] = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    assert json.loads(failed["body"]) == {"id": 7, "amount": "bad"}
    assert queue.check().findings == ()


def protected_python(root: str) -> Mapping[str, int]:
    """Protect a job whose Python function raises for one of 300 rows."""

    def number(text: str) -> int:
        return int(text)

    def parsed(df: DataFrame) -> DataFrame:
        return df.select("id", f.udf(number, "int")("amount").alias("amount"))

    frame = session().range(300).selectExpr("id", "if(id = 123, 'bad', cast(id AS string)) AS amount")
    with pytest.MonkeyPatch.context() as patch:  # few rows would all become messages, but on Spark Connect
        patch.setattr(in_place, "FEW", 1)
        patch.setattr(in_place, "LEAST", 1)
        return protect(frame, "orders", key="one", store=f"{root}/queues", policy=ONCE, transform=parsed, output=f"{root}/clean").in_place


def test_a_job_with_python_functions_keeps_its_good_rows_wherever_spark_is(place: Place, root: str) -> None:
    assert place.call(protected_python, root) == {"read": 300, "landed": 299, "filtered": 0, "messages": 1}
    assert landed(root) == [each for each in range(300) if each != 123]
    queue = Store(f"{root}/queues").queue("orders")
    [failed] = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    assert (json.loads(failed["body"]), failed["last_error"]["type"]) == ({"id": 123, "amount": "bad"}, "ValueError")


def rows_of(number: int, bad: int | None = None) -> DataFrame:
    """Rows of which one cannot be cast; None: all can."""
    return session().range(number).selectExpr("id", f"if(id = {-1 if bad is None else bad}, 'bad', cast(id AS string)) AS amount")


def even(df: DataFrame) -> DataFrame:
    return cast_amount(df).where("id % 2 = 0")


def twice(df: DataFrame) -> DataFrame:
    return cast_amount(df).selectExpr("explode(array(id, id + 100)) AS id", "amount")


def named(df: DataFrame) -> DataFrame:
    return df.selectExpr("lookup_id", "id", "try_cast(amount AS int) AS amount", "if(try_cast(amount AS int) IS NULL, 'no number', NULL) AS _poison")


def several_named(df: DataFrame) -> DataFrame:
    """Makes two rows of each, one of which it names where there is no number."""
    rows = df.selectExpr("lookup_id", "explode(array(id, id + 100)) AS id", "try_cast(amount AS int) AS amount")
    return rows.selectExpr("*", "if(amount IS NULL AND id > 99, 'no number', NULL) AS _poison")


def protected_by(root: str, transform: Callable[[DataFrame], DataFrame], key: str, bad: int | None = None) -> Mapping[str, int]:
    return protect(rows_of(20, bad), "orders", key=key, store=f"{root}/queues", policy=ONCE, transform=transform, output=f"{root}/clean").in_place


def lines_in_place(root: str, pattern: str) -> Mapping[str, int]:
    queue = Store(f"{root}/queues").declare("lines", ONCE)
    source = Files(pattern, settled=timedelta(0))
    schema = "id long, amount string"
    got = queue.receive(None, ONCE, key=pattern, spark=session(), transform=cast_amount, schema=schema, source=source, output=f"{root}/clean")
    return got.in_place


def landed(root: str) -> list[int]:
    return sorted(cast("list[int]", DeltaTable(f"{root}/clean").to_pyarrow_table()["id"].to_pylist()))


@pytest.mark.parametrize("place", [CONNECT], indirect=True)
def test_on_connect_rows_land_where_they_are_but_those_that_fail(place: Place, root: str) -> None:
    every = list(range(20))

    assert place.call(protected_by, root, cast_amount, "all") == {"read": 20, "landed": 20, "filtered": 0, "messages": 0}
    assert landed(root) == every
    assert place.call(protected_by, root, even, "even") == {"read": 20, "landed": 10, "filtered": 10, "messages": 0}
    assert place.call(protected_by, root, twice, "twice") == {"read": 20, "landed": 20, "filtered": 0, "messages": 0}
    assert landed(root) == sorted([*every, *every[::2], *every, *(each + 100 for each in every)])
    assert place.call(protected_by, root, named, "good") == {"read": 20, "landed": 20, "filtered": 0, "messages": 0}
    assert place.call(protected_by, root, named, "named", 7) == {"read": 20, "landed": 19, "filtered": 0, "messages": 1}
    queue = Store(f"{root}/queues").queue("orders")
    [failed] = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    assert (json.loads(failed["body"]), failed["reason"]) == ({"id": 7, "amount": "bad"}, "_poison: no number")
    assert len(landed(root)) == 70 + 20 + 19
    assert place.call(protected_by, root, twice, "one of two", 6) == {"read": 20, "landed": 19, "filtered": 0, "messages": 1}
    assert place.call(protected_by, root, even, "one of some", 6) == {"read": 20, "landed": 9, "filtered": 10, "messages": 1}
    assert place.call(protected_by, root, several_named, "one of several", 6) == {"read": 20, "landed": 19, "filtered": 0, "messages": 1}
    assert not queue.check().findings
    assert not [path for path in Path(f"{root}/clean").rglob("*") if path.name == "mark"]


@pytest.mark.parametrize("place", [CONNECT], indirect=True)
def test_on_connect_lines_of_json_land_where_they_are_but_those_that_fail(place: Place, root: str, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text("".join(f'{{"id": {number}, "amount": "{number}"}}\n' for number in range(20)))
    (tmp_path / "bad.json").write_text('{"id": 20, "amount": "1"}\n{"id": 21\n{"id": 22, "amount": "many"}\n')

    assert place.call(lines_in_place, root, f"{tmp_path}/good.json") == {"read": 20, "landed": 20, "filtered": 0, "messages": 0}
    assert place.call(lines_in_place, root, f"{tmp_path}/bad.json") == {"read": 3, "landed": 1, "filtered": 0, "messages": 2}
    assert landed(root) == list(range(21))


def streamed(root: str, rows: int, bad: int | None, *, beside: bool = False, of: SparkSession | None = None) -> str:
    """Add rows to a folder, and let a protected stream take them; return what it has failed with.

    :param beside: another query runs in the session. :param of: the session; None: that of the driver.
    """
    spark = of or session()
    rows_of(rows, bad).write.mode("append").parquet(f"{root}/raw")
    other = spark.readStream.format("rate").load().writeStream.format("noop").start() if beside else None
    job = protect("orders", store=f"{root}/queues", policy=ONCE, transform=cast_amount, output=f"{root}/clean")
    stream = spark.readStream.schema("id long, amount string").parquet(f"{root}/raw").writeStream.foreachBatch(job)
    query = stream.option("checkpointLocation", f"{root}/checkpoint").trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return "\n".join(line for line in str(error).splitlines() if not line.startswith(" "))  # what was raised, without the frames
    finally:
        if other is not None:
            other.stop()
    return ""


@pytest.mark.parametrize("place", [CONNECT], indirect=True)
def test_on_connect_a_stream_lands_each_row_once_also_when_its_checkpoint_is_behind(place: Place, root: str) -> None:
    assert place.call(streamed, root, 20, None) == ""
    assert place.call(streamed, root, 10, 7) == ""
    for path in Path(f"{root}/checkpoint/commits").glob("*1*"):  # the second micro-batch is begun again
        path.unlink()
    assert place.call(streamed, root, 5, None) == ""

    assert landed(root) == sorted([*range(20), *(each for each in range(10) if each != 7), *range(5)])
    queue = Store(f"{root}/queues").queue("orders")
    [failed] = [row for file in queue.table.snapshot().files for row in queue.table.read(file).to_pylist()]
    assert json.loads(failed["body"]) == {"id": 7, "amount": "bad"}
    assert queue.check().findings == ()


def streamed_with_another_archive(root: str, url: str) -> str:
    """Let a stream run in a session in which this package has been shipped with other bytes, as a client on another machine does."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(url).create()
    archive = Path(root, Path(own_package()).name)
    archive.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(own_package(), archive)
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("another.txt", "other bytes")
    Executors(spark).ship([str(archive)], ours=True)
    try:
        return streamed(root, 10, 7, of=spark)
    finally:
        spark.stop()


@pytest.mark.parametrize("place", [CONNECT], indirect=True)
def test_on_connect_a_stream_runs_where_its_client_has_shipped_other_bytes_of_this_package(place: Place, root: str) -> None:
    assert place.call(streamed_with_another_archive, root, place.where.master) == ""
    assert landed(root) == [each for each in range(10) if each != 7]


@pytest.mark.parametrize("place", [CONNECT], indirect=True)
def test_on_connect_a_stream_beside_another_one_in_its_session_is_refused(place: Place, root: str) -> None:
    assert "2 streaming queries run in this session of Spark Connect" in place.call(streamed, root, 20, None, beside=True)
    assert not Path(f"{root}/clean").exists()


def test_whom_a_verdict_names_is_poison_and_bodies_that_do_not_parse_and_all_others_land(place: Place, root: str) -> None:
    sent = bodies(MESSAGES, {7: "", 30: ""})
    sent[11] = "{nope"
    task = Transforming(root, transformation=Transformation(transforms.verdict, SCHEMA)).sent(sent)

    result = place.call(task.receive, "run")

    assert (result.settled, result.poisoned) == (MESSAGES - 3, 3)
    assert task.landed() == all_but(7, 12, 30)
    assert {number: row["reason"] for number, row in task.rows().items() if number != 12} == dict.fromkeys([7, 30], "_poison: no amount: bad")


def test_whom_nobody_names_is_found_in_sparks_own_plan(place: Place, root: str) -> None:
    task = Transforming(root).sent(bodies(MESSAGES, {7: "", 30: ""}))

    result = place.call(task.receive, "run")

    assert (result.settled, result.poisoned) == (MESSAGES - 2, 2)
    assert task.errors() == {"CAST_INVALID_INPUT": 2}
    assert task.landed() == all_but(7, 30)


def test_python_functions_that_raise_and_end_their_process_are_found(place: Place, root: str) -> None:
    task = Transforming(root, transformation=Transformation(transforms.in_python, SCHEMA)).sent(bodies(MESSAGES, {7: "raise", 30: "die"}))

    result = place.call(task.receive, "run")

    assert (result.settled, result.poisoned, result.crashes) == (MESSAGES - 2, 2, 1)
    assert task.errors() == {"ValueError": 1, "crashed": 1}
    assert task.landed() == all_but(7, 30)


def test_a_function_that_hangs_is_cancelled_and_found(place: Place, root: str) -> None:
    policy = replace(ONCE, transaction_timeout=timedelta(seconds=15))
    task = Transforming(root, policy, transformation=Transformation(transforms.in_python, SCHEMA)).sent(bodies(4, {3: "hang"}))

    result = place.call(task.receive, "run")

    assert (result.settled, result.poisoned, result.timeouts) == (3, 1, 1)
    assert task.landed() == [1, 2, 4]


def test_a_null_where_the_output_wants_a_value_charges_its_message(place: Place, root: str) -> None:
    task = Transforming(root, transformation=Transformation(transforms.lenient, SCHEMA), columns="id int, amount int not null")
    task.sent(bodies(MESSAGES, {7: "", 30: ""}))

    result = place.call(task.receive, "run")

    assert (result.settled, result.poisoned) == (MESSAGES - 2, 2)
    assert task.errors() == {UNFIT: 2}
    assert task.landed() == all_but(7, 30)


def test_a_join_with_a_table_through_sql_is_taken_and_what_mixes_rows_is_refused(place: Place, root: str) -> None:
    mixing = Transforming(root, transformation=Transformation(transforms.summed, SCHEMA)).sent(bodies(MESSAGES))
    with pytest.raises(TransformError, match="mixes rows: its plan has Aggregate over the messages"):
        place.call(mixing.receive, "refused")

    joining = Transforming(root, transformation=Transformation(transforms.joined, SCHEMA))

    assert place.call(joining.receive, "run").settled == MESSAGES
    assert joining.landed() == all_but()
