"""``Files`` of a bucket: one object with an odd name, or that the store does not hand out, stops no other one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_poison import Files
from airflow_poison.passes.alter import declare
from airflow_poison.passes.take import take
from airflow_poison.store import open_store
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import SourceError
from tests.given.passes import rows_of
from tests.unit.edges.conftest import POLICY

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.passes.take import TakeResult
    from airflow_poison.store.queue_table import QueueTable
    from tests.store.s3.conftest import Bucket

GOOD = b'{"n": 1}\n'


class Landing:
    """A folder of a bucket, and a queue that takes from it."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self.bucket, self.clock = bucket, SystemClock()
        self.table: QueueTable = declare(open_store(str(folder / "queues")), "orders", POLICY, self.clock)
        self.key = 0

    def put(self, *names: str) -> None:
        for name in names:
            self.bucket.client.put_object(Bucket=self.bucket.name, Key=name, Body=GOOD)

    def take(self) -> TakeResult:
        self.key += 1
        source = Files(f"s3://{self.bucket.name}/in/**/*.json", name="landing", settled=timedelta(0), storage_options=self.bucket.options)
        return take(self.table, source, key=str(self.key), clock=self.clock)

    def reasons(self) -> list[str]:
        return [str(row["reason"]) for row in rows_of(self.table).values() if row["reason"] is not None]


@pytest.fixture
def landing(bucket: Bucket, tmp_path: Path) -> Landing:
    return Landing(bucket, tmp_path)


@pytest.mark.parametrize("odd", ["in//b.json", "in/b\t.json", "in/b//c.json", "in/../b.json", "in/./b.json", "in/b\x7f.json"])
def test_an_object_with_an_odd_name_is_passed_over_by_name_and_its_neighbours_are_taken(landing: Landing, odd: str) -> None:
    landing.put("in/a.json", odd, "in/c.json", "in/z/d.json")

    result = landing.take()

    assert (result.sent, result.malformed, len(result.passed_over)) == (3, 0, 1)
    assert repr(odd)[1:-1].rpartition("/")[2] in result.passed_over[0]


UNUSUAL = ("b%2Fc", "\xe4 b", "b+c", "b?c#d", "n" * 900, "b\\c", "day=1/b  c[1]%", "\U0001f602", "Sa\xedda@1:2")
"""The last ones as in generalui/s3p 53, aws-sdk-js 4300, aws-sdk-android 321, HDDS-6096."""


@pytest.mark.parametrize("name", [f"in/{name}.json" for name in UNUSUAL])
def test_an_object_with_an_unusual_name_is_taken(landing: Landing, name: str) -> None:
    landing.put("in/a.json", name, "in/c.json")

    assert landing.take().sent == 3
    assert landing.take().sent == 0


def test_an_object_that_the_store_refuses_is_one_message_and_is_taken_when_it_can_be_read(landing: Landing) -> None:
    landing.put("in/a.json", "in/b.json", "in/c.json")
    archived = f"/{landing.bucket.name}/in/b.json"
    landing.bucket.proxy.archived.add(archived)

    first = landing.take()
    again = landing.take()
    landing.bucket.proxy.archived.clear()
    last = landing.take()

    assert [(each.sent, each.malformed) for each in (first, again, last)] == [(3, 1), (0, 0), (1, 0)]
    assert again.passed_over == (f"1 file cannot be opened by this user: s3:/{archived}",)
    [why] = landing.reasons()
    assert f"s3:/{archived} cannot be opened: the object store refuses it" in why
    assert "InvalidObjectState" in why


def test_credentials_that_may_read_no_object_are_an_error_and_take_nothing(landing: Landing) -> None:
    landing.put("in/a.json", "in/b.json")
    landing.bucket.proxy.archived |= {f"/{landing.bucket.name}/in/{name}.json" for name in "ab"}

    with pytest.raises(SourceError, match=r"No object of source 'landing' can be read\. s3://.*a\.json cannot be opened: .*Grant this user"):
        landing.take()
    landing.bucket.proxy.archived.clear()

    assert landing.take().sent == 2


def test_an_object_that_is_removed_between_the_list_and_its_reading_concerns_no_other(landing: Landing) -> None:
    landing.put("in/a.json", "in/b.json", "in/c.json")
    client: Any = landing.bucket.client

    def remove(request: Any) -> None:
        if request.kind == "get" and request.path.endswith("/in/a.json"):
            client.delete_object(Bucket=landing.bucket.name, Key="in/b.json")

    landing.bucket.proxy.plan = remove

    assert landing.take().sent == 2
