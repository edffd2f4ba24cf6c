"""The sums of the demo of sources: they agree, or say where they do not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_poison.passes.alter import declare
from airflow_poison.passes.take import take
from airflow_poison.rules.msmq4 import Msmq4
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import MalformedError
from tools.demo_sources import feeds
from tools.demo_sources.feeds import FEEDS, Sum, cents, is_malformed, order, produced
from tools.demo_sources.sums import Sums, sums

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 1_000
GOOD = Sums(RECORDS, sum(produced(RECORDS).values(), Sum()), produced(RECORDS), produced(RECORDS)["landed"].number, tuple(range(1, RECORDS + 1)))


def test_what_agrees_has_no_fault() -> None:
    assert list(GOOD.faults()) == []
    assert GOOD.everywhere == GOOD.expected == Sum(RECORDS, sum(map(cents, range(RECORDS))))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(GOOD, taken=GOOD.taken + Sum(1, 5)), "taken: 1,001 orders"),
        (replace(GOOD, there={**GOOD.there, "poison": Sum(2, 1)}), "poison: expected 3 orders of .*, found 2"),
        (replace(GOOD, there={**GOOD.there, "main": Sum(1, 0)}), "landed, in poison and malformed together"),
        (replace(GOOD, ids=GOOD.ids - 1), "1 orders have landed more than once"),
        (replace(GOOD, numbers=(1, *range(1, RECORDS))), "lookup ids are not 1 to 1,000"),
        (replace(GOOD, findings=("a file is missing",)), "a file is missing"),
    ],
)
def test_what_does_not_agree_is_said(wrong: Sums, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert not list(wrong.faults())


def test_orders_are_what_they_are_counted_as() -> None:
    for number in range(RECORDS):
        body = order(number).encode()
        if is_malformed(number):
            with pytest.raises(MalformedError):
                feeds.TOPIC.schema.decode(body)  # type: ignore[union-attr]  # it has one
        else:
            assert json.loads(body)["cents"] == cents(number)


def test_what_a_take_adds_is_found_in_the_tables_log(tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    (tmp_path / "source").mkdir()
    table = declare(open_store(str(tmp_path / "store")), FEEDS[1].queue, Msmq4(), SystemClock())
    source = replace(feeds.FOLDER, pattern=str(tmp_path / "source" / "*.json"))
    with FEEDS[1].filled(tmp_path / "source", RECORDS):
        take(table, source, key="1", clock=SystemClock())
    nothing = pa.schema([("message", pa.int64()), ("id", pa.int64()), ("cents", pa.int64())]).empty_table()
    write_deltalake(str(tmp_path / "landed"), nothing)
    found = sums(FEEDS[1], tmp_path, RECORDS)
    assert (found.taken, found.there["malformed"], found.numbers) == (GOOD.taken, GOOD.there["malformed"], GOOD.numbers)
    assert found.there["main"] == GOOD.there["landed"] + GOOD.there["poison"]
    assert any("landed, in poison" in fault for fault in found.faults()) is False
    assert any(fault.startswith("landed: expected") for fault in found.faults())
