"""Transformations of data frames on a real Spark: every culprit is found, nobody else is charged, and wrong declarations are told."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as f

from airflow_poison.delivery.handlers import Transformation
from airflow_poison.passes.engines import LocalEngine
from airflow_poison.passes.receive import ReceivePass
from airflow_poison.passes.send import send
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.spark import messages
from airflow_poison.spark.engine import SparkEngine
from airflow_poison.spark.function import _LOUD, depends_on_place, expected, has_python, optimized_plan
from airflow_poison.spark.messages import SPREAD, ClaimFrames, is_of_body, pieces, shares
from airflow_poison.spark.units import UNFIT
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import ExecutorError, HandlerNotFoundError, PoisonError, SettingError, SparkJobError, TransformError
from airflow_poison.values.events import EventType
from airflow_poison.values.schema import FRAME_COLUMNS
from tests.given import transforms
from tests.given.drivers import Ahead, Work, told
from tests.given.transforms import SCHEMA, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

    from airflow_poison.passes.runs import ReceiveResult
    from airflow_poison.rules.policy import Policy

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark leaves results' sockets to the garbage collector
POLICY = Msmq4(receive_retry_count=1, max_retry_cycles=0, receive_error_handling="Move", transaction_timeout=timedelta(seconds=20))
FAULT = replace(POLICY, receive_error_handling="Fault")
MESSAGES = 2_000
TEN = dict.fromkeys([1, 2, 77, 500, 501, 502, 999, 1500, 1999, 2000], "raise")


def received(work: Work, spark: SparkSession, transformation: Transformation, lines: list[str] | None = None) -> ReceiveResult:
    return a_pass(work, spark, transformation, lines).run("frames")


def a_pass(work: Work, spark: SparkSession, transformation: Transformation, lines: list[str] | None = None) -> ReceivePass:
    tell = (lines if lines is not None else list[str]()).append
    return replace(work.a_pass(spark), handler=transformation, engine=lambda: SparkEngine(spark, tell))


def sent(folder: Path, texts: list[str], policy: Msmq4 = POLICY) -> Work:
    return Work(str(folder / "store"), policy=policy).sent(texts)


def errors(work: Work) -> Counter[str]:
    return Counter(row["last_error"]["type"] for row in work.rows().values())  # type: ignore[index]


def test_a_clean_claim_is_one_job(tmp_path: Path, spark: SparkSession) -> None:
    lines: list[str] = []
    work = sent(tmp_path, bodies(300))

    result = received(work, spark, Transformation(transforms.joined, SCHEMA), lines)

    assert (result.received, result.settled, result.deliveries) == (300, 300, 300)
    assert work.rows() == {}
    assert "300 messages transformed in 1 unit and" in lines[-1]


@pytest.mark.parametrize("messages", [300, 1])
@pytest.mark.parametrize("reads", ["tasks", "Spark", "handler"])
def test_a_file_that_cannot_be_read_charges_no_message(tmp_path: Path, spark: SparkSession, reads: str, messages: int) -> None:
    work = sent(tmp_path, bodies(messages))
    (file,) = work.table().snapshot().files
    path = Path(work.table().root, file.path)
    group = pq.read_metadata(path).row_group(0)
    (body,) = (group.column(number) for number in range(group.num_columns) if group.column(number).path_in_schema == "body")
    whole, first = path.read_bytes(), body.dictionary_page_offset or body.data_page_offset
    path.write_bytes(whole[:first] + bytes(body.total_compressed_size) + whole[first + body.total_compressed_size :])
    takers = {"tasks": Transformation(transforms.joined, SCHEMA), "Spark": Transformation(transforms.lengths, None)}
    a_run = a_pass(work, spark, takers[reads]) if reads in takers else work.a_pass(spark)

    with pytest.raises(SparkJobError, match="claimed files cannot be read") as caught:
        a_run.run("frames")

    assert file.path in str(caught.value)
    assert "`airflow poison check` lists the damage" in str(caught.value)
    path.write_bytes(whole)
    result = a_run.run("frames")
    assert (result.settled, result.rollbacks) == (messages, 0)


def test_whom_a_verdict_names_is_poison_and_nobody_else_is_run_again(tmp_path: Path, spark: SparkSession) -> None:
    lines: list[str] = []
    work = sent(tmp_path, bodies(MESSAGES, TEN))

    result = received(work, spark, Transformation(transforms.verdict, SCHEMA), lines)

    assert (result.settled, result.poisoned, result.rollbacks) == (MESSAGES - 10, 10, 20)
    assert sorted(work.rows()) == sorted(TEN)
    assert {row["reason"] for row in work.rows().values()} == {"_poison: no amount: bad"}
    assert "in 2 units" in lines[-1], "one job, and one for those that are tried again"


def test_while_failures_are_looked_for_spark_does_not_log_each_with_all_its_stacks(spark: SparkSession) -> None:
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]

    def levels() -> set[str]:
        return {str(log4j.LogManager.getLogger(f"org.apache.spark.{name}").getLevel()) for name in _LOUD}

    before = levels()
    one, another = expected(spark), expected(spark)
    one.__enter__()
    another.__enter__()
    one.__exit__(None, None, None)
    assert levels() == {"OFF"}, "the other one still looks for failures"
    assert PySparkLogger.getLogger("SQLQueryContextLogger").disabled
    another.__exit__(None, None, None)
    assert levels() == before
    assert not PySparkLogger.getLogger("SQLQueryContextLogger").disabled


def test_the_path_of_sparks_python_has_no_archive_of_spark_on_it(spark: SparkSession) -> None:
    """Each task has their directories read again, 16 times."""

    def path() -> str:
        return "\n".join(sys.path)

    (found,) = spark.range(1).select(f.udf(path, useArrow=False)().alias("path")).collect()

    assert not [entry for entry in found["path"].splitlines() if "pyspark" in entry and entry.endswith((".zip", ".jar"))]


@pytest.mark.campaign
def test_ten_that_nobody_names_are_found_in_the_jvms_own_plan(tmp_path: Path, spark: SparkSession) -> None:
    lines: list[str] = []
    work = sent(tmp_path, bodies(MESSAGES, TEN))

    result = received(work, spark, Transformation(transforms.cast, SCHEMA), lines)

    assert (result.settled, result.poisoned, result.rollbacks) == (MESSAGES - 10, 10, 20)
    assert sorted(work.rows()) == sorted(TEN)
    assert errors(work) == {"CAST_INVALID_INPUT": 10}
    units = int(lines[-1].split(" messages transformed in ")[1].split()[0])
    assert units <= 3, "as it is, without those that failed alone, and once more where one of them was behind another"


@pytest.mark.campaign
def test_python_functions_that_raise_and_die_are_found_by_the_task_that_failed(tmp_path: Path, spark: SparkSession) -> None:
    lines: list[str] = []
    culprits = {7: "raise", 201: "die"}
    work = sent(tmp_path, bodies(300, culprits))

    result = received(work, spark, Transformation(transforms.in_python, SCHEMA), lines)

    units = int(lines[-1].split(" messages transformed in ")[1].split()[0])
    assert units <= 3, "halving needs more than twenty"
    assert (result.settled, result.poisoned, result.crashes) == (298, 2, 2)
    assert errors(work) == {"ValueError": 1, "crashed": 1}
    failed = work.rows()[7]["last_error"]
    assert failed["message"] == "no such amount: bad"  # type: ignore[index]
    assert "in _checked" in failed["trace"]  # type: ignore[index]


def test_a_unit_is_spread_as_it_is_said(tmp_path: Path, spark: SparkSession) -> None:
    """Spark's hash decides, of numbers that were chosen for it."""
    work = sent(tmp_path, bodies(300))
    ids = np.setdiff1d(np.arange(1, 301), [3, 4, 250])
    table = work.table()

    frame = ClaimFrames(spark, table.root, table.snapshot().files, np.arange(1, 301), SCHEMA).raw(ids, spread=True).frame

    assert frame is not None
    found = {row["lookup_id"]: row["task"] for row in frame.selectExpr("lookup_id", "spark_partition_id() AS task").collect()}
    assert found == dict(zip(ids.tolist(), shares(ids).tolist(), strict=True))
    assert {*found.values()} == {*range(SPREAD)}


@pytest.mark.campaign
def test_a_function_that_hangs_is_a_timeout_of_its_message(tmp_path: Path, spark: SparkSession) -> None:
    quick = replace(POLICY, receive_retry_count=0, transaction_timeout=timedelta(seconds=10))  # the start of Python counts
    work = sent(tmp_path, bodies(8, {3: "hang"}), quick)

    result = received(work, spark, Transformation(transforms.in_python, SCHEMA))

    assert (result.settled, result.poisoned, result.timeouts) == (7, 1, 1)
    assert errors(work) == {"timeout": 1}


def test_a_body_that_does_not_parse_is_its_messages_failure(tmp_path: Path, spark: SparkSession) -> None:
    wrong, right = (
        ["{nope", '[{"id": 1, "amount": "3"}]', '{"id": "x"}', "", '{"id": 1, "amount": "3"} x'],
        ['{"id": 1, "amount": "3"}', ' \t{"id": 1, "amount": "3"}\r\n'],
    )
    work = sent(tmp_path, [*bodies(5), *wrong, *right])

    result = received(work, spark, Transformation(transforms.cast, SCHEMA))

    assert (result.settled, result.poisoned) == (7, 5)
    assert sorted(work.rows()) == [6, 7, 8, 9, 10]
    texts = {number: row["last_error"]["message"] for number, row in work.rows().items()}  # type: ignore[index]
    assert "no JSON" in texts[6]
    assert "object" in texts[7]
    assert "id" in texts[8]


BODIES = (
    '{"id": 1}',
    '{"id": 1, "amount": "3"}',
    "{}",
    '{"id": 1.0}',
    '\ufeff{"id": 1}',
    '{"id": null}',
    '{"id": 1} x',
    "{nope}",
    '{"id": 1, "id": 2}',
    "[]",
    "",
)


@pytest.mark.campaign
@pytest.mark.parametrize("schema", ["id int, amount string", "id int NOT NULL, amount string"])
def test_a_body_fails_a_strict_job_when_it_does_not_fit_and_only_then(tmp_path: Path, spark: SparkSession, schema: str) -> None:
    table = sent(tmp_path, list(BODIES)).table()
    files, ids = table.snapshot().files, np.arange(1, len(BODIES) + 1)
    frames = ClaimFrames(spark, table.root, files, ids, schema)
    good = {row["lookup_id"]: row for row in frames.given(frames.raw(ids)).collect()}

    for number in ids.tolist():
        frame = frames.given(frames.raw(np.array([number])), strict=True)
        if number in good:
            assert frame.collect() == [good[number]]
        else:
            with pytest.raises(Exception, match=r"poison: a body does not fit: ") as caught, expected(spark):
                frame.collect()
            assert is_of_body(caught.value)
    assert len(good) == (6 if "NOT" not in schema else 4)


def test_marks_are_above_the_python_that_makes_columns_of_bodies(tmp_path: Path, spark: SparkSession) -> None:
    """Python reads ahead: below it, a mark would name a message far behind the one that fails."""
    table = sent(tmp_path, bodies(50)).table()
    frames = ClaimFrames(spark, table.root, table.snapshot().files, np.arange(1, 51), SCHEMA)
    given = frames.given(frames.raw(np.arange(1, 51)), "poison.test.", strict=True)
    jvm = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]

    with pytest.raises(Exception, match="CAST_INVALID_INPUT"), expected(spark):
        given.selectExpr("cast(if(lookup_id = 7, 'bad', '0') AS int)").coalesce(1).write.format("noop").mode("overwrite").save()

    assert {jvm.getProperty(name) for name in jvm.getProperties().stringPropertyNames() if name.startswith("poison.test.")} == {"7"}
    assert not has_python(optimized_plan(given))


@pytest.mark.parametrize("limits", [{}, {"spark.sql.maxPlanStringLength": "10", "spark.sql.debug.maxToStringFields": "1"}], ids=["usual", "narrow"])
def test_what_a_plan_has_behind_many_columns_is_seen(tmp_path: Path, spark: SparkSession, limits: dict[str, str]) -> None:
    wide = spark.range(3).selectExpr(*(f"id + {number} AS c{number}" for number in range(60)), "monotonically_increasing_id() AS place")
    before = {name: spark.conf.get(name) for name in limits}
    for name, value in limits.items():
        spark.conf.set(name, value)
    try:
        assert depends_on_place(optimized_plan(wide))
        assert received(sent(tmp_path, bodies(3)), spark, Transformation(transforms.cast, SCHEMA)).settled == 3
        assert {name: spark.conf.get(name) for name in limits} == limits
    finally:
        for name, kept in before.items():
            spark.conf.set(name, str(kept))


def test_bodies_become_columns_in_the_python_of_the_driver_whatever_python_the_session_names(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python3")

    result = received(sent(tmp_path, [*bodies(3), "{nope"]), spark, Transformation(transforms.cast, SCHEMA))

    assert (result.settled, result.poisoned) == (3, 1)
    assert spark.sparkContext.pythonExec == "/no/such/python3"


def test_a_python_that_cannot_make_columns_is_found_before_anything_is_claimed(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = sent(tmp_path, bodies(3))
    monkeypatch.setattr(sys, "executable", "/no/such/python3")
    monkeypatch.setattr(messages, "_tried", set())

    with pytest.raises(ExecutorError, match=r"Spark's Python \(/no/such/python3\) cannot make columns of bodies: (?s:.*)Nothing was claimed"):
        received(work, spark, Transformation(transforms.cast, SCHEMA))

    assert work.table().snapshot().claims == ()


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_bodies_are_made_columns_of_some_megabytes_at_a_time(size: int) -> None:
    batch = pa.record_batch([pa.array(range(1, 41)), pa.array([b" " * size + b"{}"] * 40, pa.binary())], names=["lookup_id", "body"])

    sizes = [piece.num_rows for piece in pieces(batch)]

    assert sizes == ([40] if size == 100 else [5] * 8)


@pytest.mark.campaign
@pytest.mark.parametrize("transform", [transforms.in_python, transforms.nothing_of_it, transforms.cast], ids=lambda function: function.__name__)
def test_bodies_that_do_not_parse_are_found_whatever_is_made_of_the_others(
    tmp_path: Path, spark: SparkSession, transform: Callable[[DataFrame], DataFrame]
) -> None:
    work = sent(tmp_path, [*bodies(20, {4: "raise"} if transform is not transforms.nothing_of_it else {}), "{nope"])
    lines = list[str]()

    result = received(work, spark, Transformation(transform, SCHEMA), lines)

    assert sorted(work.rows()) == ([21] if transform is transforms.nothing_of_it else [4, 21])
    assert errors(work)["airflow_poison.values.errors.BodyError"] == 1
    assert result.settled == 21 - len(work.rows())


def test_without_a_schema_the_frame_has_the_columns_of_messages(tmp_path: Path, spark: SparkSession) -> None:
    seen: list[list[str]] = []

    def columns(df: DataFrame) -> DataFrame:
        seen.append(df.columns)
        return df.selectExpr("cast(body AS string) AS text", "group_id")

    result = received(sent(tmp_path, bodies(5)), spark, Transformation(columns))

    assert result.settled == 5
    assert {"lookup_id", "body", "properties", "abort_count", "move_count"} <= {*seen[-1]}


def test_a_verdict_by_count_sees_the_count_of_each_delivery(tmp_path: Path, spark: SparkSession) -> None:
    work = sent(tmp_path, [str(n) for n in range(20)], replace(POLICY, receive_retry_count=2))

    def patient(df: DataFrame) -> DataFrame:
        wants = f.expr("element_at(array(0, 1, 2, 9), cast(lookup_id % 4 + 1 as int))")
        why = f.when(f.col("abort_count") < wants, f.format_string("seen %d", "abort_count"))
        return df.select("lookup_id", f.col("lookup_id").alias("id"), "abort_count", why.alias("_poison"))

    rows = landed(work, spark, Transformation(patient))

    assert {row["id"]: row["abort_count"] for row in rows} == {n: n % 4 for n in range(1, 21) if n % 4 < 3}
    assert {row["reason"] for row in work.rows().values()} == {"_poison: seen 2"}


@pytest.mark.parametrize("ids", [np.arange(1, 601), np.arange(150, 451), np.setdiff1d(np.arange(1, 601), [1, 299, 300, 301, 600])], ids=len)
def test_tasks_read_themselves_what_spark_would_read(tmp_path: Path, spark: SparkSession, ids: NDArray[np.int64]) -> None:
    work = sent(tmp_path, bodies(300))
    table = work.table()
    send(table, [pa.record_batch({"body": pa.array([text.encode() for text in bodies(300)], pa.binary())})], key="more", clock=SystemClock())
    frames = ClaimFrames(spark, table.root, table.snapshot().files, np.arange(1, 601), SCHEMA)
    raw = frames.raw(ids)
    assert raw.frame is None
    assert sum(part.rows for share in raw.shares for part in share) == len(ids)

    found = sorted(frames.given(raw, strict=True).collect())

    frames._tasks = 0
    assert found == sorted(frames.given(frames.raw(ids), strict=True).collect())
    assert [row["lookup_id"] for row in found] == ids.tolist()


def test_messages_of_a_unit_may_have_counts_of_their_own(tmp_path: Path, spark: SparkSession) -> None:
    table = sent(tmp_path, [str(n) for n in range(3)]).table()
    ids, attempts = np.arange(1, 4), np.array([0, 2, 1], np.int32)

    frame = ClaimFrames(spark, table.root, table.snapshot().files, ids, None).raw(ids, attempts).frame

    assert frame is not None
    assert sorted((row["lookup_id"], row["abort_count"]) for row in frame.collect()) == [(1, 0), (2, 2), (3, 1)]
    assert frame.columns == [*FRAME_COLUMNS]


@pytest.mark.campaign
def test_what_is_behind_a_message_that_halts_the_queue_stays(tmp_path: Path, spark: SparkSession) -> None:
    work = sent(tmp_path, bodies(40, {7: "raise", 9: "raise"}), FAULT)

    result = received(work, spark, Transformation(transforms.cast, SCHEMA))

    assert result.halted is not None
    assert result.halted["lookup_id"] == 7
    assert (result.settled, result.rollbacks) == (6, 2)
    assert sorted(work.rows()) == list(range(7, 41))
    assert {row["abort_count"] for number, row in work.rows().items() if number > 7} == {0}


@pytest.mark.campaign
def test_rows_that_are_mixed_are_transformed_as_one(tmp_path: Path, spark: SparkSession) -> None:
    work = sent(tmp_path, bodies(40, {7: "raise"}))

    result = received(work, spark, Transformation(transforms.summed, SCHEMA, mixes_rows=True))

    assert (result.settled, result.poisoned) == (39, 1)
    assert sorted(work.rows()) == [7]


def test_a_pass_killed_in_the_middle_is_finished_and_nobody_is_charged(tmp_path: Path, spark: SparkSession) -> None:
    """The next holder is careful with what was in flight: a small unit after the other, and no charge without a second death."""
    work = sent(tmp_path, bodies(40, {7: "raise"}))
    with pytest.raises(KeyboardInterrupt):
        interrupted(work, spark)

    lines: list[str] = []
    finished = replace(a_pass(work, spark, Transformation(transforms.cast, SCHEMA), lines), clock=Ahead()).run("another")

    assert (finished.settled, finished.poisoned, finished.rollbacks, finished.crashes) == (39, 1, 2, 0)


def interrupted(work: Work, spark: SparkSession) -> None:
    """Receive, and be interrupted when a unit has failed."""
    from airflow_poison.values import fault_points

    def strike(point: str) -> None:
        if point == "frames.charge.after":
            raise KeyboardInterrupt

    fault_points.install(strike)
    try:
        received(work, spark, Transformation(transforms.cast, SCHEMA))
    finally:
        fault_points.install(None)


WRONG: list[tuple[Callable[[DataFrame], object], bool, str]] = [
    (lambda df: df.selectExpr("no_such_column"), False, r"raised AnalysisException when it was called with an empty DataFrame.*no_such_column"),
    (lambda df: df.columns, False, r"returned list; expected a DataFrame, or a mapping of names to DataFrames"),
    (lambda _df: {}, False, r"returned an empty mapping"),
    (lambda df: {"a b": df}, False, r"returned a mapping with the name 'a b'"),
    (lambda df: df.selectExpr("id", "'bad' AS _poison"), False, r"returned the column _poison without lookup_id"),
    (lambda df: df.selectExpr("lookup_id", "id", "amount IS NULL AS _poison"), False, r"returned _poison as boolean; expected is a text"),
    (lambda df: df.selectExpr("lookup_id", "id", "0 AS _POISON"), False, r"returned _poison as int; expected is a text"),
    (transforms.summed, False, r"mixes rows: its plan has Aggregate over the messages.*mixes_rows=True"),
    (lambda df: df.join(df.withColumnRenamed("id", "other"), "lookup_id"), False, r"mixes rows: its plan has a join \(Inner\)"),
    (lambda df: df.join(df.sparkSession.range(3), "id", "right"), False, r"mixes rows: its plan has a join \(RightOuter\)"),
    (lambda df: df.sparkSession.range(3).join(df, "id", "left_anti"), False, r"mixes rows: its plan has a join \(LeftAnti\)"),
    (lambda df: df.limit(3), False, r"mixes rows: its plan has GlobalLimit"),
    (lambda df: df.dropDuplicates(["id"]), False, r"mixes rows: its plan has Deduplicate"),
    (lambda df: df.sparkSession.range(3), False, r"is not made of the one it was given"),
]


@pytest.mark.parametrize(("function", "mixes", "text"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_transformation_is_refused_before_anything_is_claimed(
    tmp_path: Path,
    spark: SparkSession,
    function: Callable[[DataFrame], DataFrame],
    mixes: bool,  # noqa: FBT001
    text: str,
) -> None:
    work = sent(tmp_path, bodies(3))

    with pytest.raises(TransformError, match=f"(?s){text}"):
        received(work, spark, Transformation(function, SCHEMA, mixes_rows=mixes))

    assert work.table().snapshot().claims == ()


def test_a_lookup_id_that_is_no_messages_own_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    work = sent(tmp_path, bodies(3))

    with pytest.raises(TransformError, match=r"returned _poison for lookup_id 10\d, which is none of the messages it was given"):
        received(work, spark, Transformation(lambda df: df.selectExpr("lookup_id + 100 AS lookup_id", "'bad' AS _poison"), SCHEMA))

    assert set(work.rows()) == {1, 2, 3}


@pytest.mark.parametrize(
    ("policy", "transformation", "text"),
    [
        (ServiceBroker(), Transformation(transforms.cast, SCHEMA), "a policy whose decisions depend on one message alone"),
        (FAULT, Transformation(transforms.summed, SCHEMA, mixes_rows=True), "a policy that does not halt at a message"),
        (POLICY, Transformation(transforms.cast, SCHEMA), "a handler of messages here: queue 'orders' is received from without Spark"),
    ],
)
def test_what_a_transformation_does_not_go_with(tmp_path: Path, policy: Policy, transformation: Transformation, text: str) -> None:
    table = sent(tmp_path, bodies(3)).table()

    with pytest.raises(SettingError, match=text):
        ReceivePass(table=table, policy=policy, handler=transformation, engine=LocalEngine, clock=SystemClock()).run("refused")


@pytest.mark.parametrize(
    ("function", "schema", "text"),
    [
        ("shop", None, "'shop' is not of the form 'module:function'"),
        (lambda df, day: df, None, r"cannot be called with a DataFrame alone"),  # noqa: ARG005
        (3, None, "transform=3 is int; name a function of a DataFrame"),
        (transforms.cast, "lookup_id int", "columns of other names than lookup_id and _poison"),
        (transforms.cast, "id nothing", "schema='id nothing' is not allowed"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(function: object, schema: str | None, text: str) -> None:
    with pytest.raises((HandlerNotFoundError, SettingError), match=text):
        Transformation(function, schema)  # type: ignore[arg-type]


def test_a_name_that_cannot_be_imported_is_refused_before_anything_is_claimed(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(PoisonError, match=r"transform: .*no_such_module"):
        received(sent(tmp_path, bodies(3)), spark, Transformation("no_such_module:clean"))


@pytest.mark.campaign
def test_a_jvm_that_is_killed_leaves_suspects_and_they_are_careful_units(tmp_path: Path, spark: SparkSession) -> None:
    work = sent(tmp_path, bodies(5))
    assert told(work.start_frames("killed"))["error"] == "SparkJobError"
    lines: list[str] = []

    result = a_pass(work, spark, Transformation(transforms.cast, SCHEMA), lines).run("killed")

    assert (result.settled, result.rollbacks) == (5, 0)
    announced = "5 messages were worked on when everything died: they are transformed first, in 5 small units"
    assert any(announced in line for line in lines)  # a slow machine prints progress before
    [unstable] = [event for event in work.table().events() if event.type is EventType.UNSTABLE_BATCH]
    assert (unstable.details["first"], unstable.details["last"]) == ("1", "5")


def test_bodies_are_json() -> None:
    assert json.loads(bodies(3, {2: "raise"})[1]) == {"id": 2, "amount": "bad", "kind": "raise"}


# What a transformation makes lands -------------------------------------------------------------------------------------


def landed(work: Work, spark: SparkSession, transformation: Transformation, output: object = None, **settings: object) -> list[dict[str, object]]:
    """Receive with an output; return the rows that have landed."""
    from deltalake import DeltaTable

    from airflow_poison.outputs.output import outputs_of

    uri = f"{work.root}.landed"
    outputs = outputs_of(uri if output is None else output, **settings)  # type: ignore[arg-type]
    replace(a_pass(work, spark, transformation), outputs=outputs).run("landing")
    return sorted(DeltaTable(uri).to_pyarrow_table().to_pylist(), key=str) if output is None else []


@pytest.mark.campaign
def test_the_rows_of_messages_that_settle_land_once_and_no_others(tmp_path: Path, spark: SparkSession) -> None:
    culprits = {7: "raise", 30: "raise"}
    work = sent(tmp_path, bodies(40, culprits))

    rows = landed(work, spark, Transformation(transforms.cast, SCHEMA))

    assert sorted(row["id"] for row in rows) == sorted({*range(1, 41)} - {*culprits})  # type: ignore[type-var]
    assert rows[0].keys() == {"id", "amount"}


def test_whom_a_verdict_names_has_no_row_and_our_columns_do_not_land(tmp_path: Path, spark: SparkSession) -> None:
    work = sent(tmp_path, bodies(40, {7: "raise"}))

    rows = landed(work, spark, Transformation(transforms.verdict, SCHEMA), provenance=True)

    assert sorted(row["id"] for row in rows) == sorted({*range(1, 41)} - {7})  # type: ignore[type-var]
    assert {row["_lookup_id"] == row["id"] for row in rows} == {True}
    assert {row["_queue"] for row in rows} == {"orders"}
    assert not {"lookup_id", "_poison"} & rows[0].keys()


STRICT = "id int, amount int not null"


def test_a_null_where_the_output_wants_a_value_charges_its_message(tmp_path: Path, spark: SparkSession) -> None:
    work = sent(tmp_path, bodies(40, {7: "raise", 30: "raise"}))

    rows = landed(work, spark, Transformation(transforms.lenient, SCHEMA), schema=STRICT)

    assert sorted(row["id"] for row in rows) == sorted({*range(1, 41)} - {7, 30})  # type: ignore[type-var]
    assert {row["reason"] for row in work.rows().values()} == {f"{UNFIT}: Column 'amount' of the output must have a value; the row has none."}
    assert sorted(work.rows()) == [7, 30]


@pytest.mark.campaign
def test_a_null_in_a_row_that_does_not_name_its_message_is_searched_for(tmp_path: Path, spark: SparkSession) -> None:
    work = sent(tmp_path, bodies(40, {7: "raise", 30: "raise"}))

    rows = landed(work, spark, Transformation(lambda df: transforms.lenient(df).drop("lookup_id"), SCHEMA), schema=STRICT)

    assert sorted(row["id"] for row in rows) == sorted({*range(1, 41)} - {7, 30})  # type: ignore[type-var]
    failed = work.rows()[7]["last_error"]
    assert failed["type"] == "USER_RAISED_EXCEPTION"  # type: ignore[index]
    assert failed["message"] == "Column 'amount' of the output must have a value; the row has none."  # type: ignore[index]


@pytest.mark.campaign
@pytest.mark.parametrize("names", [True, False], ids=["named", "searched for"])
def test_a_row_that_the_table_of_the_output_refuses_charges_its_message(tmp_path: Path, spark: SparkSession, names: bool) -> None:  # noqa: FBT001
    from deltalake import DeltaTable, write_deltalake

    columns = pa.schema([("id", pa.int32()), ("m", pa.map_(pa.string(), pa.int32())), ("day", pa.string()), ("more", pa.int64())])
    work = sent(tmp_path, bodies(40))
    write_deltalake(f"{work.root}.landed", pa.Table.from_pylist([], schema=columns), partition_by=["day"])
    DeltaTable(f"{work.root}.landed").alter.add_constraint({"large": "id <> 7 OR more > 1"})

    def mapped(df: DataFrame) -> DataFrame:
        named = ["lookup_id"] if names else []
        day = "CASE id WHEN 8 THEN '' WHEN 9 THEN repeat('é', 60) ELSE 'a day' END AS day"
        return df.selectExpr(*named, "id", "map('a', id) AS m", day)

    rows = landed(work, spark, Transformation(mapped, SCHEMA))

    assert sorted(row["id"] for row in rows) == sorted({*range(1, 41)} - {7, 8, 9})  # type: ignore[type-var]
    assert {str(row["m"]) for row in rows} == {f"[('a', {row['id']})]" for row in rows}
    assert sorted(work.rows()) == [7, 8, 9]
    assert "it breaks the constraint 'large': id != 7 OR more > 1" in work.rows()[7]["last_error"]["message"]  # type: ignore[index]
    assert "is one of partitions" in work.rows()[9]["last_error"]["message"]  # type: ignore[index]


NOT_SPARKS = ("uint", "float16", "dictionary", "large_", "date64")
"""Types that no DataFrame has, or that it has under another name of these."""


@pytest.mark.parametrize("feature", ["nothing", "check", "generated", "invariants", "append only", "change data feed"])
def test_a_row_with_each_type_lands_in_a_table_with_each_feature_and_one_that_is_refused_charges_its_message(
    tmp_path: Path, spark: SparkSession, feature: str
) -> None:
    from deltalake import DeltaTable, QueryBuilder

    from tests.unit.passes.test_what_outputs_hold import HELD, a_table_of

    kinds = {name: kind for name, (kind, _) in HELD.items() if not any(each in name for each in NOT_SPARKS)}
    values = {name: HELD[name][1] for name in kinds}
    pq.write_table(pa.Table.from_pylist([values], schema=pa.schema(kinds.items())), tmp_path / "values.parquet")
    work = sent(tmp_path, bodies(4))
    a_table_of(Path(f"{work.root}.landed"), feature)

    def with_each_type(df: DataFrame) -> DataFrame:
        joined = df.select("lookup_id").crossJoin(df.sparkSession.read.parquet(str(tmp_path / "values.parquet")))
        return joined.withColumn("int32", f.expr("IF(lookup_id = 2, 5, int32)"))

    landed(work, spark, Transformation(with_each_type, SCHEMA), output=f"{work.root}.landed")

    refused = [2] if feature == "check" else []
    assert sorted(work.rows()) == refused
    columns = ", ".join(f'"{name}"' for name in kinds)
    query = QueryBuilder().register("t", DeltaTable(f"{work.root}.landed")).execute(f"SELECT {columns} FROM t")
    found = pa.table(query.read_all()).to_pylist()
    assert [row for row in found if row["int32"] != 5] == [values] * 3
    assert len(found) == 4 - len(refused)


@pytest.mark.campaign
def test_two_results_land_in_two_outputs(tmp_path: Path, spark: SparkSession) -> None:
    from deltalake import DeltaTable

    work = sent(tmp_path, bodies(30, {7: "raise"}))
    uris = {"large": f"{work.root}.large", "small": f"{work.root}.small"}

    landed(work, spark, Transformation(transforms.two, SCHEMA), uris)

    found = {name: sorted(DeltaTable(uri).to_pyarrow_table()["id"].to_pylist(), key=str) for name, uri in uris.items()}
    assert found == {"large": [*range(11, 31)], "small": [1, 10, 2, 3, 4, 5, 6, 8, 9]}


@pytest.mark.parametrize(
    ("output", "settings", "text"),
    [
        ({"late": "/tmp/late"}, {}, "returned a DataFrame without a name, which is no output; there are 'late'"),
        (None, {"schema": "id int"}, "returned a column 'amount'; the output has id"),
        (None, {"schema": "id string, amount int"}, "returned the column 'id' as int32; the output has string"),
        (None, {"schema": "id int, amount int, day date not null"}, "returned no column 'day', which must have a value in each row of the output"),
        (None, {"provenance": True}, "returned no column lookup_id, from which provenance=True is filled"),
    ],
)
def test_a_result_that_cannot_land_is_refused_before_anything_is_claimed(
    tmp_path: Path, spark: SparkSession, output: object, settings: dict[str, object], text: str
) -> None:
    work = sent(tmp_path, bodies(3))

    with pytest.raises(TransformError, match=text):
        landed(work, spark, Transformation(transforms.cast, SCHEMA), output, **settings)

    assert work.table().snapshot().claims == ()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["id", "INTERVAL '1' DAY AS took"], "returned what the output cannot hold: column 'took': a Delta table has no type for duration"),
        (["id", "named_struct('a', 1, 'A', 2) AS s"], "column 's': a Delta table has no struct with the fields 'a' and 'A'"),
        (["id", "ID AS Id"], "a Delta table has no columns 'id' and 'Id', which differ by case"),
    ],
)
def test_a_result_of_types_that_delta_does_not_have_is_refused(tmp_path: Path, spark: SparkSession, columns: list[str], says: str) -> None:
    work = sent(tmp_path, bodies(3))

    with pytest.raises(TransformError, match=says):
        landed(work, spark, Transformation(lambda df: df.selectExpr(*columns), SCHEMA))

    assert work.table().snapshot().claims == ()
