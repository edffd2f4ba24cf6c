"""How the rows of a claim are divided among tasks."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.spark.shares import FEWEST_ROWS, Part, SharedSite, parts_of, plan_shares, read_share
from airflow_poison.store.files import DataFile
from airflow_poison.values.schema import message_schema

if TYPE_CHECKING:
    from pathlib import Path


def a_file(number: int, rows: int) -> DataFile:
    return DataFile(f"sub_queue=main/move_count=0/{number}.parquet", "main", 0, rows, rows, 1, rows, 5, 5)


@given(sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=20), tasks=st.integers(1, 16))
def test_every_row_belongs_to_exactly_one_share_in_the_order_of_the_files(sizes: list[int], tasks: int) -> None:
    shares = plan_shares([a_file(number, rows) for number, rows in enumerate(sizes)], tasks)

    rows = [(part.path, row) for share in shares for part in share for row in range(part.start, part.start + part.rows)]
    assert rows == [(f"sub_queue=main/move_count=0/{number}.parquet", row) for number, size in enumerate(sizes) for row in range(size)]
    assert 1 <= len(shares) <= tasks
    assert all(sum(part.rows for part in share) >= min(FEWEST_ROWS, sum(sizes)) for share in shares[:-1])


@given(data=st.data(), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_rows_of_files_are_parts_that_are_as_long_as_they_can_be(data: st.DataObject, sizes: list[int]) -> None:
    wanted = data.draw(st.permutations(range(sum(sizes))).flatmap(lambda rows: st.integers(1, len(rows)).map(lambda number: rows[:number])))
    begins = [sum(sizes[:number]) for number in range(len(sizes))]

    files = [a_file(number, rows) for number, rows in enumerate(sizes)]
    parts = parts_of(files, np.array(wanted), sum(sizes))

    assert parts is not None
    assert parts_of(files, np.array(wanted), len(parts)) == parts
    assert parts_of(files, np.array(wanted), len(parts) - 1) is None
    of = [int(part.path.rpartition("/")[2].removesuffix(".parquet")) for part in parts]
    assert [begins[number] + row for number, part in zip(of, parts, strict=True) for row in range(part.start, part.start + part.rows)] == sorted(
        wanted
    )
    assert all(0 <= part.start < part.start + part.rows <= sizes[number] for number, part in zip(of, parts, strict=True))
    for number, (one, other) in zip(of, pairwise(parts), strict=False):
        assert other.path != one.path or other.start > one.start + one.rows, number


def test_a_share_reads_its_rows_across_row_groups(tmp_path: Path) -> None:
    names = message_schema().names
    table = pa.table(
        [pa.array(range(1_000), pa.int64()) if name == "lookup_id" else pa.nulls(1_000, message_schema().field(name).type) for name in names],
        schema=message_schema(),
    )
    path, site = "file.parquet", SharedSite(str(tmp_path))
    pq.write_table(table, tmp_path / path, row_group_size=300)

    for start, rows in ((0, 1_000), (0, 1), (299, 2), (300, 300), (450, 550), (999, 1)):
        batches = list(read_share(site, [Part(path, 3, start, rows)]))
        ids = [number for batch in batches for number in batch.column("lookup_id").to_pylist()]
        assert ids == list(range(start, start + rows))
        assert [each for batch in read_share(site, [Part(path, 3, start, rows)], ["lookup_id"]) for each in batch.to_pylist()] == [
            {"lookup_id": number} for number in ids
        ]
        assert all(batch.column("move_count").to_pylist() == [3] * batch.num_rows for batch in batches)


@pytest.mark.parametrize(("size", "rows", "largest"), [(100, 40_000, 16_384), (100_000, 400, 17 * 1024 * 1024 // 100_000), (20 * 1024 * 1024, 3, 1)])
def test_a_batch_is_bounded_in_messages_and_in_bytes(tmp_path: Path, size: int, rows: int, largest: int) -> None:
    path, site = "messages.parquet", SharedSite(str(tmp_path))
    some = pa.Table.from_pylist([{"lookup_id": number, "body": os.urandom(size)} for number in range(rows)], schema=message_schema())
    pq.write_table(some, tmp_path / path)
    batches = list(read_share(site, [Part(path, 0, 0, rows)]))
    assert sum(batch.num_rows for batch in batches) == rows
    assert largest // 2 <= max(batch.num_rows for batch in batches) <= largest
