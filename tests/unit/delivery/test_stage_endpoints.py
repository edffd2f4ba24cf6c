"""The receive stage with endpoints that remember: sweeps over batches, counters that tasks leave behind, halts that other tasks see."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_poison.delivery import stage
from airflow_poison.delivery.handlers import resolve_handler
from airflow_poison.delivery.stage import StageJob, Tally, deliver_partition
from airflow_poison.rules.policy import Opening
from airflow_poison.values.clock import VirtualClock
from airflow_poison.values.schema import TALLY
from tests.given.endpoints import broker, deliveries, in_groups, saying, specification, written

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.rules.policy import Policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "journal").mkdir()
    return tmp_path


def job(folder: Path, policy: Policy, **others: Any) -> StageJob:
    handler = resolve_handler("tests.sessions.endpoint_handlers:recorded")
    return replace(StageJob("q", policy, handler, str(folder / "journal"), VirtualClock(), isolation="none"), **others)


def run(given: StageJob, batches: list[pa.RecordBatch], partition: str = "0") -> tuple[list[dict[str, Any]], Tally]:
    rows = pa.Table.from_batches(list(deliver_partition(given, partition, iter(batches)))).to_pylist()
    tally = next(Tally.from_record(json.loads(row["body"])) for row in rows if row["sub_queue"] == TALLY)
    return [row for row in rows if not row["sub_queue"].startswith("_")], tally


def pairs(folder: Path, *words: str) -> list[pa.RecordBatch]:
    """Batches of two messages."""
    bodies = saying(folder, *words)
    return [in_groups("  ", bodies[start : start + 2], start) for start in range(0, len(bodies), 2)]


def test_wmq_29_a_sweep_goes_over_all_batches_before_it_begins_again(folder: Path) -> None:
    rows, _ = run(job(folder, specification(2, backout_threshold=2)), pairs(folder, "raise", "ok", "raise", "ok", "ok", "raise"))

    assert written(folder) == [0, 1, 2, 3, 4, 5, 0, 2, 5]
    assert [row["sub_queue"] for row in rows] == []


def test_a_queue_that_is_too_long_to_be_held_is_swept_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "SWEPT_ROWS", 4)

    run(job(folder, specification(2, backout_threshold=2)), pairs(folder, "raise", "ok", "raise", "ok", "raise", "ok"))

    assert written(folder) == [0, 1, 2, 3, 0, 2, 4, 5, 4]


def test_wmq_20_what_a_stopped_endpoint_did_not_receive_passes_through_as_it_came(folder: Path) -> None:
    rows, tally = run(job(folder, specification(2, failures=2)), pairs(folder, *["raise"] * 6))

    assert [(row["lookup_id"], row["abort_count"], row["sub_queue"]) for row in sorted(rows, key=lambda row: row["lookup_id"])] == [
        *((0, 1, "main"), (1, 1, "main")),
        *((number, 0, "main") for number in range(2, 6)),
    ]
    assert tally.halt is not None
    assert (tally.halt["lookup_id"], tally.halt["how"], tally.halt["details"]["sequential_failures"]) == (1, "stopped", "2")
    assert (tally.counts["halted"], tally.counts["untouched"], tally.counts["deliveries"]) == (1, 5, 2)
    assert tally.counters == {"sequential_failures": 2}


def test_sb_7_tasks_leave_together_what_one_would_have_left(folder: Path) -> None:
    """Counters of each group: a begins anew, b goes on, c is in no task."""
    policy = broker(1, scope="conversation_group", rollback_limit=9)
    opening = Opening("q", {"rollbacks:a": 3, "rollbacks:b": 2, "rollbacks:c": 1})
    given = job(folder, policy, opening=opening, stop_file=str(folder / "halted"))

    _, first = run(given, [in_groups("a", saying(folder, "ok"))], "0")
    _, second = run(given, [in_groups("b", saying(folder, "postpone-after 2"), 1)], "1")

    for one, other in ((first, second), (second, first)):
        total = Tally()
        total.add(one)
        total.add(other)
        assert total.counters == {"rollbacks:b": 4, "rollbacks:c": 1}


def test_the_halt_of_one_task_ends_the_others_and_is_told_once(folder: Path) -> None:
    policy = broker(1, scope="conversation_group", rollback_limit=1)
    given = job(folder, policy, stop_file=str(folder / "halted"))

    _, first = run(given, [in_groups("aa", saying(folder, "raise", "ok"))], "0")
    rows, second = run(given, [in_groups("bb", saying(folder, "ok", "ok"), 10), in_groups("b", saying(folder, "ok"), 20)], "1")

    assert first.halt is not None
    assert second.halt is None
    assert [row["lookup_id"] for row in rows] == [10, 11, 20]
    assert deliveries(folder) == {0: 1}


def test_sb_23_without_readers_every_message_passes_through(folder: Path) -> None:
    rows, tally = run(job(folder, broker(0)), pairs(folder, "ok", "ok", "ok", "ok"))

    assert [row["lookup_id"] for row in rows] == [0, 1, 2, 3]
    assert (tally.counts["untouched"], tally.counts["deliveries"]) == (4, 0)
