"""What an object store does to requests under way: answers late, fails, does a thing twice, is silent about what it did, lists late."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_poison.store.bucket_folder import BucketFolder
from airflow_poison.store.bucket_store import BucketLog
from airflow_poison.store.files import Commit
from airflow_poison.store.objects import Objects
from airflow_poison.values.errors import StoreUnreachableError
from airflow_poison.values.schema import SubQueue
from tests.given.proxy import LATE_SECONDS, Harm, Request, Seeded
from tests.given.tables import LEASE, NOW, all_rows, batch, claim, ids, outcome_of_a_third, rows_of, seal, send

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_poison.store.files import LogState
    from airflow_poison.store.queue_table import QueueTable
    from tests.store.s3.conftest import Bucket

NONE = timedelta(0)


class Once:
    """A plan that harms the first of the requests that are meant."""

    def __init__(self, harm: Harm, meant: Callable[[Request], bool]) -> None:
        self._harm, self._meant, self._done = harm, meant, False

    def __call__(self, request: Request) -> Harm | None:
        if self._done or not self._meant(request):
            return None
        self._done = True
        return self._harm


# One harm at one request ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", Harm)
def test_a_commit_whose_request_is_harmed_counts_once(bucket: Bucket, harm: Harm) -> None:
    queue = bucket.made()
    bucket.proxy.plan = Once(harm, lambda request: request.commits)
    sent = send(queue, 3)
    assert bucket.proxy.harmed == {harm: 1}
    assert (sent.repeated, sent.first_lookup_id, sent.messages) == (False, 1, 3)
    assert bucket.versions() == [0, 1]
    assert ids(bucket.queue("b")) == [1, 2, 3]


def test_a_commit_that_is_answered_after_the_client_has_gone_counts_once(bucket: Bucket) -> None:
    bucket.made()
    queue = bucket.store(TIMEOUT=f"{round(LATE_SECONDS * 500)}ms").open("orders")
    bucket.proxy.plan = Once(Harm.ANSWERED_LATE, lambda request: request.commits)
    assert not send(queue, 3).repeated
    assert bucket.versions() == [0, 1]
    assert ids(bucket.queue("b")) == [1, 2, 3]


@pytest.mark.parametrize("harm", Harm)
def test_of_two_who_make_the_same_version_one_does_whatever_happens_to_the_request(bucket: Bucket, harm: Harm) -> None:
    one, two = bucket.made("a"), bucket.queue("b")
    base = two.log.load()
    send(one, 1, "faster")
    bucket.proxy.plan = Once(harm, lambda request: request.commits)
    assert not two.log.commit(base, Commit("alter", numbers={"mine": 1}))
    assert bucket.proxy.harmed == {harm: 1}
    assert send(two, 1, "slower").first_lookup_id == 2
    assert bucket.versions() == [0, 1, 2]


@pytest.mark.parametrize("harm", [harm for harm in Harm if harm is not Harm.LISTED_LATE])
def test_a_pass_goes_on_whatever_happens_to_a_request_of_each_kind(bucket: Bucket, harm: Harm) -> None:
    queue = bucket.made()
    send(queue, 6)
    left = {"get", "put", "list", "remove", "copy"}

    def plan(request: Request) -> Harm | None:
        meant = request.kind in left
        left.discard(request.kind)
        return harm if meant else None

    bucket.proxy.plan = plan
    held = claim(queue)
    queue.stage_table(held, outcome_of_a_third(rows_of(queue, held)))
    assert queue.finish(held, seal(queue, held), now=NOW)
    queue.move_files(lambda snapshot: snapshot.files, SubQueue.POISON, NOW)
    assert bucket.proxy.harmed == {harm: 5}
    assert ids(bucket.queue("b")) == [3, 6]


# Late lists -------------------------------------------------------------------------------------------------------------


def test_a_new_node_sees_the_newest_version_though_the_list_lacks_the_newest_entries(bucket: Bucket) -> None:
    queue = bucket.made()
    for number in range(9):
        send(queue, 1, str(number))
    bucket.proxy.hidden = 5
    objects = Objects.at(bucket.store().uri, bucket.options).below("orders")
    assert BucketLog(BucketFolder(objects, str(bucket.folder / "looks once"), "node")).load().version == 9
    seen = bucket.queue("b")
    assert seen.snapshot().version == 9
    assert ids(seen) == list(range(1, 10))
    assert send(seen, 1, "3").repeated


def test_a_late_list_makes_no_old_version_of_a_shortened_log(bucket: Bucket) -> None:
    queue = bucket.made()
    for number in range(9):
        send(queue, 1, str(number))
    queue.shorten_log(retention=NONE)
    for number in range(9, 14):
        send(queue, 1, str(number))
    bucket.proxy.hidden = 5
    assert ids(bucket.queue("b")) == list(range(1, 15))


# Much harm, two at work -------------------------------------------------------------------------------------------------


@dataclass
class Worker:
    """One of two that send to a queue and receive from it. What raises is done again, with the same key, as a task is that is retried.

    :ivar again: how often it has done something again.
    """

    name: str
    queue: QueueTable
    again: int = 0

    def work(self, rounds: int) -> None:
        for number in range(rounds):
            self._until_done(self._send, f"{self.name}-{number}")
            self._until_done(self._receive, f"{self.name}-{number}")

    def _send(self, key: str) -> None:
        self.queue.append([batch(*(f"{key}-{each}".encode() for each in range(4)))], key, NOW)

    def _receive(self, key: str) -> None:
        held = self.queue.claim(key, lease=LEASE, now=NOW, max_messages=8)
        if held is None:  # the other one has them all, or an earlier try of this pass has finished
            return
        sealed = self.queue.manifest(held)
        if sealed is None:
            rows = rows_of(self.queue, held)
            stays = outcome_of_a_third(rows)
            self.queue.stage_table(held, stays)
            gone = set(rows["lookup_id"].to_pylist()) - set(stays["lookup_id"].to_pylist())
            told = [row["body"].decode() for row in rows.to_pylist() if row["lookup_id"] in gone]
            sealed = seal(self.queue, held, {"settled": told})
        self.queue.finish(held, sealed, now=NOW)

    def _until_done(self, act: Callable[[str], None], key: str) -> None:
        for _ in range(20):
            try:
                return act(key)
            except StoreUnreachableError:
                self.again += 1
        raise AssertionError


def test_two_who_send_and_settle_lose_nothing_and_do_nothing_twice_whatever_happens(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.getrandbits(32)
    rounds = 8
    made: list[int] = []
    commit = BucketLog.commit

    def noted(self: BucketLog, base: LogState, change: Commit) -> bool:
        done = commit(self, base, change)
        made.extend([base.version + 1] if done else [])
        return done

    monkeypatch.setattr(BucketLog, "commit", noted)
    bucket.made("a")
    workers = [Worker(name, bucket.queue(name)) for name in ("a", "b")]
    bucket.proxy.plan = Seeded(seed)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda worker: worker.work(rounds), workers))
    bucket.proxy.plan = lambda _: None
    known = f"seed {seed}, harmed {bucket.proxy.harmed}, done again {[worker.again for worker in workers]}"
    seen = bucket.queue("c")
    bodies = Counter(f"{worker.name}-{number}-{each}" for worker in workers for number in range(rounds) for each in range(4))
    results: list[Any] = [seen.result(f"{worker.name}-{number}") for worker in workers for number in range(rounds)]
    settled = Counter(body for result in results if result for body in result["settled"])
    waiting = Counter(str(row["body"], "utf-8") for row in cast("Any", all_rows(seen)))
    assert settled + waiting == bodies, known
    firsts = sorted((seen.append([], f"{worker.name}-{number}", NOW)).first_lookup_id for worker in workers for number in range(rounds))
    assert firsts == list(range(1, 8 * rounds, 4)), known
    versions = bucket.versions()
    assert versions == list(range(len(versions))), known
    assert len(made) == len(set(made)), known
    assert set(made) <= set(versions), known
    assert settled, known
    assert len(bucket.proxy.harmed) == len(Harm), known
