"""A store that ignores the condition of ``create`` loses acknowledged commits: no queue is made there, and a check reports it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from airflow_poison.fsck.check import check_queue, check_store
from airflow_poison.fsck.files import Kind
from airflow_poison.store.bucket_store import TRIAL
from airflow_poison.values.clock import SystemClock
from airflow_poison.values.errors import StoreConditionError, StoreUnreachableError
from tests.given.proxy import Harm
from tests.given.tables import CONTROL, ids, send

if TYPE_CHECKING:
    from airflow_poison.fsck.check import CheckResult
    from airflow_poison.fsck.files import Finding
    from tests.given.proxy import Request
    from tests.store.s3.conftest import Bucket

pytestmark = pytest.mark.long

CLOCK = SystemClock()


def objects(bucket: Bucket) -> set[str]:
    found = bucket.client.list_objects_v2(Bucket=bucket.name)
    return {each["Key"].removeprefix("queues/") for each in found.get("Contents", [])}


def reported(result: CheckResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.kind is Kind.CONDITION_IGNORED]


class First:
    """Harms so many of the first trials."""

    def __init__(self, harm: Harm, times: int) -> None:
        self._harm, self._left = harm, times

    def __call__(self, request: Request) -> Harm | None:
        if self._left and request.path.endswith(TRIAL) and request.kind == "create":
            self._left -= 1
            return self._harm
        return None


def test_a_store_that_ignores_the_condition_gets_no_queue_and_keeps_nothing(bucket: Bucket) -> None:
    bucket.proxy.ignores = True
    with pytest.raises(StoreConditionError, match=rf"s3://{bucket.name}/queues.*If-None-Match.*vanish.*use a folder\. No queue was made"):
        bucket.made()
    assert objects(bucket) == set()


def test_a_store_that_keeps_it_is_asked_twice_for_the_first_queue_and_once_for_each_later_one(bucket: Bucket) -> None:
    for name, trials in (("orders", 2), ("others", 1), ("third", 1)):
        with bucket.proxy.counted() as requests:
            bucket.store(f"node of {name}").create(name, CONTROL)
        assert requests["create"] == trials + 1, name  # and its first entry
    with bucket.proxy.counted() as requests:
        bucket.store("yet another").create("orders", CONTROL)
    assert requests["create"] == 0
    assert sorted(bucket.store().names()) == ["orders", "others", "third"]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("harm", Harm)
def test_a_trial_whose_answers_are_lost_accuses_no_store_that_keeps_the_condition(bucket: Bucket, harm: Harm, times: int) -> None:
    bucket.proxy.plan = First(harm, times)
    send(bucket.made(), 3)
    assert bucket.proxy.harmed[harm] in {1, times}  # one that is done twice is refused the second time: nothing more is to be tried
    assert ids(bucket.queue("b")) == [1, 2, 3]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("harm", Harm)
def test_a_trial_whose_answers_are_lost_excuses_no_store_that_ignores_it(bucket: Bucket, harm: Harm, times: int) -> None:
    bucket.proxy.ignores, bucket.proxy.plan = True, First(harm, times)
    with pytest.raises(StoreConditionError):
        bucket.made()


def test_what_a_killed_trial_has_left_changes_nothing(bucket: Bucket) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key=f"queues/{TRIAL}", Body=b"")
    send(bucket.made(), 1)
    bucket.client.put_object(Bucket=bucket.name, Key=f"queues/{TRIAL}", Body=b"")
    bucket.proxy.ignores = True
    with pytest.raises(StoreConditionError):
        bucket.store("b").create("others", CONTROL)


def test_several_who_make_queues_at_once_accuse_nobody(bucket: Bucket) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: bucket.store(f"node-{number}").create(f"q{number % 4}", CONTROL), range(8)))
    assert sorted(bucket.store().names()) == ["q0", "q1", "q2", "q3"]


def test_a_check_reports_a_store_that_ignores_the_condition_and_writes_nothing_else(bucket: Bucket) -> None:
    send(bucket.made(), 3)
    before = objects(bucket)
    assert reported(check_queue(bucket.store(), "orders", CLOCK)) == []
    bucket.proxy.ignores = True
    [result] = check_store(bucket.store(), CLOCK)
    [finding] = reported(result)
    assert (finding.kind, finding.severity, finding.mendable) == ("condition_ignored", "error", False)
    assert f"s3://{bucket.name}/queues" in finding.what
    assert "If-None-Match" in finding.what
    assert objects(bucket) == before
    assert ids(bucket.queue("b")) == [1, 2, 3]


def test_a_check_of_who_may_not_write_is_a_check(bucket: Bucket) -> None:
    bucket.made()
    bucket.proxy.plan = lambda request: Harm.FAILED_BEFORE if request.kind == "create" else None
    assert reported(check_queue(bucket.store(), "orders", CLOCK)) == []


def test_a_store_that_does_not_answer_is_not_accused(bucket: Bucket) -> None:
    bucket.proxy.denies = True
    with pytest.raises(StoreUnreachableError, match="403 Forbidden"):
        bucket.made()
