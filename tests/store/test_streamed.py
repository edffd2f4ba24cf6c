"""Parquet files of others are read a row group at a time, and batches are small where rows are large."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_poison.store.row_groups import streamed

GROUPS, ROWS, BODY = 12, 40, 500_000
READ = """
import sys
from pathlib import Path
import pyarrow.parquet as pq
from airflow_poison.store.row_groups import streamed
def peak():
    return int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))) * 1024
with pq.ParquetFile(sys.argv[1]) as file:
    before = peak()
    rows = sum(batch.num_rows for batch in streamed(file, 10_000))
    print(rows, peak() - before)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path, schema = tmp_path / "large.parquet", pa.schema({"number": pa.int64(), "body": pa.binary()})  # type: ignore[arg-type]  # names and types
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for group in range(GROUPS):
            writer.write_batch(pa.record_batch([range(group * ROWS, (group + 1) * ROWS), [bytes(BODY)] * ROWS], schema=schema))
    return path


def test_a_batch_is_small_where_rows_are_large_and_all_come_in_order(file: Path) -> None:
    with pq.ParquetFile(file) as parquet:
        found = list(streamed(parquet, 10_000))
        few = [batch.num_rows for batch in streamed(parquet, 7)]
    assert [number for batch in found for number in batch.column("number").to_pylist()] == list(range(GROUPS * ROWS))
    assert max(batch.nbytes for batch in found) <= 33 << 20
    assert (max(few), sum(few)) == (7, GROUPS * ROWS)


def test_memory_holds_a_row_group_not_the_file(file: Path) -> None:
    said = subprocess.run([sys.executable, "-c", READ, str(file)], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    rows, grown = map(int, said.split())
    assert rows == GROUPS * ROWS
    assert grown < file.stat().st_size // 2


def test_a_file_without_rows_yields_nothing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"number": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    with pq.ParquetFile(tmp_path / "empty.parquet") as parquet:
        assert [batch for batch in streamed(parquet, 10) if batch.num_rows] == []
