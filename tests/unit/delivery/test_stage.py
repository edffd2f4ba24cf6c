"""The receive stage as one task runs it, in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from airflow_poison.delivery import stage
from airflow_poison.delivery.handlers import resolve_handler
from airflow_poison.delivery.recovered import ClaimHistory, RecoveredAttempts
from airflow_poison.delivery.stage import StageJob, deliver_partition
from airflow_poison.passes import delivering
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.schema import TALLY, message_schema

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.values.message import Message

CALLS: list[int] = []


def record_and_fail_on_seven(message: Message) -> None:
    CALLS.append(message.lookup_id)
    if message.lookup_id == 7:
        raise ValueError("seven")


def messages(ids: range) -> pa.RecordBatch:
    fields = message_schema()
    columns = [pa.array(ids, pa.int64()) if field.name == "lookup_id" else pa.nulls(len(ids), field.type) for field in fields]
    return pa.record_batch([*columns, pa.array(np.zeros(len(ids), np.int32))], names=[*fields.names, "move_count"])


@pytest.fixture
def job(tmp_path: Path) -> StageJob:
    CALLS.clear()
    policy = Msmq4(receive_retry_count=2, max_retry_cycles=1, receive_error_handling="Move")
    return StageJob("q", policy, resolve_handler(record_and_fail_on_seven), str(tmp_path), VirtualClock(), isolation="none")


def run(job: StageJob, batches: list[pa.RecordBatch]) -> tuple[list[dict[str, object]], dict[str, int]]:
    rows = pa.Table.from_batches(list(deliver_partition(job, "0", iter(batches)))).to_pylist()
    tally = next(json.loads(row["body"]) for row in rows if row["sub_queue"] == TALLY)
    return [row for row in rows if not row["sub_queue"].startswith("_")], tally["counts"]


def test_only_what_fails_leaves_a_row(job: StageJob) -> None:
    rows, counts = run(job, [messages(range(1, 5)), messages(range(5, 11))])

    assert [(row["lookup_id"], row["sub_queue"], row["move_count"], row["reason"]) for row in rows] == [(7, "retry", 1, "ValueError: seven")]
    assert (counts["received"], counts["committed"], counts["parked"], counts["deliveries"], counts["rollbacks"]) == (10, 9, 1, 12, 3)


def test_an_empty_partition_leaves_nothing(job: StageJob) -> None:
    assert list(deliver_partition(job, "0", iter([messages(range(0))]))) == []


def test_a_task_that_runs_again_delivers_only_what_its_earlier_attempt_left_open(job: StageJob) -> None:
    def breaks_off() -> Iterator[pa.RecordBatch]:
        yield messages(range(1, 5))
        yield messages(range(5, 11))
        raise ConnectionError("the executor is gone")

    with pytest.raises(ConnectionError):
        list(deliver_partition(job, "0", breaks_off()))
    delivered = list(CALLS)
    rows, counts = run(job, [messages(range(1, 5)), messages(range(5, 11)), messages(range(11, 13))])

    assert CALLS[len(delivered) :] == [11, 12]
    assert [row["lookup_id"] for row in rows] == [7]
    assert (counts["received"], counts["committed"], counts["rollbacks"]) == (12, 11, 3)


def test_another_partition_knows_nothing_of_it(job: StageJob) -> None:
    run(job, [messages(range(1, 5))])
    CALLS.clear()

    list(deliver_partition(job, "1", iter([messages(range(1, 5))])))

    assert CALLS == [1, 2, 3, 4]


# Suspects of a lost node ---------------------------------------------------------------------------------------------


def test_suspects_of_a_lost_node_come_in_sections_of_their_own() -> None:
    """As large as they may be; neighbours of another size, and those that are no suspects, are in others."""
    rows = pa.record_batch({"lookup_id": pa.array(range(1, 11), pa.int64())})
    sizes = {3: 2, 4: 2, 5: 2, 6: 1, 7: 1}

    cut = [batch.column("lookup_id").to_pylist() for batch in stage._graded([rows], sizes)]

    assert cut == [[1, 2], [3, 4], [5], [6], [7], [8, 9, 10]]


def test_many_suspects_are_cut_and_those_of_more_losses_finer() -> None:
    deaths = {**dict.fromkeys(range(1, 1_001), 1), **dict.fromkeys(range(1, 41), 2), 1: 3}
    story = ClaimHistory(RecoveredAttempts(), alone=tuple(deaths), deaths=deaths)

    sizes = delivering._sections(story)

    assert (sizes[1], sizes[2], sizes[1_000]) == (1, 2, 30)
    assert delivering._sections(ClaimHistory(RecoveredAttempts(), alone=(1, 2), deaths={1: 1, 2: 1})) == {}
