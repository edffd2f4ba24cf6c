"""A retry cycle with a source, in a real Airflow: rows are transformed in place, and the same DAG delivers what failed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from deltalake import DeltaTable, write_deltalake

from airflow_poison import DeltaChanges, Msmq4
from airflow_poison.taskgroups import retry_cycle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from airflow_poison.store import QueueStore

    from .conftest import Ran

POLICY = Msmq4(receive_retry_count=0, max_retry_cycles=1, retry_cycle_delay=timedelta(0), receive_error_handling="Move")


def cleaned(df: DataFrame) -> DataFrame:
    return df.selectExpr("id", "cast(amount AS int) AS amount")


@pytest.mark.long
def test_a_retry_cycle_takes_its_source_in_place_and_its_retries_end_in_poison(
    store: QueueStore, run_dag: Callable[..., Ran], tmp_path: Path
) -> None:
    raw, clean = str(tmp_path / "raw"), str(tmp_path / "clean")
    write_deltalake(raw, pa.table({"id": [1, 2, 3], "amount": ["1", "bad", "3"]}))
    with DAG("protected", start_date=datetime(2026, 1, 1, tzinfo=UTC), schedule=None) as dag:
        retry_cycle("orders", policy=POLICY, source=DeltaChanges(raw), transform=cleaned, output=clean)

    first = run_dag(dag, datetime(2026, 1, 2, tzinfo=UTC))
    write_deltalake(raw, pa.table({"id": [4], "amount": ["4"]}), mode="append")
    second = run_dag(dag, datetime(2026, 1, 3, tzinfo=UTC))
    again = run_dag(dag, datetime(2026, 1, 3, tzinfo=UTC))

    assert first.errors == second.errors == again.errors == {}
    assert DeltaTable(clean).to_pyarrow_table().sort_by("id")["id"].to_pylist() == [1, 3, 4]
    [poison] = [row for file in store.open("orders").snapshot().files for row in store.open("orders").read(file).to_pylist()]
    assert (poison["sub_queue"], poison["body"]) == ("poison", b'{"id":2,"amount":"bad"}')
