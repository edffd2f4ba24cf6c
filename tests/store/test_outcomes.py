"""What a task leaves in its claim's stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.store import stage
from airflow_poison.store.stage import OutcomeWriter
from airflow_poison.values.errors import ClaimLostError, ServerSessionError
from airflow_poison.values.schema import table_schema
from tests.given.tables import NOW

if TYPE_CHECKING:
    from pathlib import Path


def rows(sub_queue: str, move_count: int, ids: range) -> pa.Table:
    return pa.Table.from_pylist([{"lookup_id": number, "sub_queue": sub_queue, "move_count": move_count} for number in ids], schema=table_schema())


def found(out: Path) -> dict[str, list[int]]:
    """Return the lookup ids by partition, of files that a listing of the stage would see."""
    ids: dict[str, list[int]] = {}
    for path in sorted(out.glob("*/*/*.parquet")):
        if not path.name.startswith("."):
            with pq.ParquetFile(path) as file:
                ids.setdefault(str(path.parent.relative_to(out)), []).extend(row["lookup_id"] for row in file.read(["lookup_id"]).to_pylist())
    return ids


def test_each_partition_gets_one_file(tmp_path: Path) -> None:
    with OutcomeWriter(tmp_path, "3") as writer:
        writer.write(pa.concat_tables([rows("retry", 1, range(3)), rows("poison", 5, range(3, 5))]))
        writer.write(rows("retry", 1, range(5, 7)))

    assert found(tmp_path) == {"sub_queue=poison/move_count=5": [3, 4], "sub_queue=retry/move_count=1": [0, 1, 2, 5, 6]}
    assert len(list(tmp_path.glob("*/*/*.parquet"))) == 2


def test_dmp_10_what_waits_for_a_restart_of_the_broker_is_not_due_with_its_neighbours(tmp_path: Path) -> None:
    waits = [{"lookup_id": number, "sub_queue": "postponed", "move_count": 0, "due_at": None if number % 2 else NOW} for number in range(4)]
    with OutcomeWriter(tmp_path, "3") as writer:
        writer.write(pa.Table.from_pylist(waits, schema=table_schema()))

    files = [pq.read_table(path, partitioning=None).select(["lookup_id", "due_at"]).to_pylist() for path in tmp_path.glob("*/*/*.parquet")]
    assert sorted([row["lookup_id"] for row in file] for file in files) == [[0, 2], [1, 3]]


def test_nothing_is_listed_before_the_task_has_finished_nor_after_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_GROUP_ROWS", 2)
    writer = OutcomeWriter(tmp_path, "3").__enter__()
    writer.write(rows("retry", 1, range(5)))
    assert found(tmp_path) == {}

    writer.__exit__(ConnectionError)

    assert list(tmp_path.glob("*/*/*")) == []


def test_a_second_attempt_does_not_write_beside_a_living_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_WAIT_SECONDS", 0.0)
    with OutcomeWriter(tmp_path, "3") as first:
        first.write(rows("retry", 1, range(3)))
        with pytest.raises(ServerSessionError, match="An earlier attempt of task 3 still writes"):
            OutcomeWriter(tmp_path, "3").__enter__()

    assert found(tmp_path) == {"sub_queue=retry/move_count=1": [0, 1, 2]}


def test_a_task_that_runs_again_replaces_what_it_had_left_and_nothing_else(tmp_path: Path) -> None:
    for task, ids in (("3", range(3)), ("30", range(10, 12))):
        with OutcomeWriter(tmp_path, task) as writer:
            writer.write(rows("retry", 1, ids))

    with OutcomeWriter(tmp_path, "3") as writer:
        writer.write(rows("poison", 5, range(3)))

    assert found(tmp_path) == {"sub_queue=poison/move_count=5": [0, 1, 2], "sub_queue=retry/move_count=1": [10, 11]}


def test_a_task_whose_stage_was_fenced_says_that_its_claim_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_GROUP_ROWS", 2)
    writer = OutcomeWriter(tmp_path / "stage" / "out", "3").__enter__()
    writer.write(rows("retry", 1, range(5)))
    (tmp_path / "stage").rename(tmp_path / "stage.fenced")

    with pytest.raises(ClaimLostError, match="given up by its driver"):
        writer.__exit__(None)
