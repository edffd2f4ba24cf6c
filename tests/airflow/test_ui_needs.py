"""What of a queue needs somebody: in words, the most urgent first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_poison.passes.browse import ClaimView, QueueOverview
from airflow_poison.store.control import OutageState
from airflow_poison.store.files import SubQueueDepth
from airflow_poison.ui.page_data import needs
from airflow_poison.values.schema import SubQueue
from airflow_poison.watching.trends import Trend

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EMPTY = SubQueueDepth(messages=0, claimed=0, oldest_enqueued_at=None, next_due_at=None, due=0, by_move_count={})
QUIET = QueueOverview(
    queue="orders",
    uri="/store/orders",
    version=7,
    at=NOW,
    state="enabled",
    reason="",
    poison_state="enabled",
    poison_reason="",
    halted_by=None,
    blocked_until=None,
    policy={},
    counters={},
    sub_queues=dict.fromkeys(SubQueue, EMPTY),
)


def holding(place: SubQueue, depth: SubQueueDepth) -> QueueOverview:
    return replace(QUIET, sub_queues={**QUIET.sub_queues, place: depth})


def growth(number: int) -> Trend:
    return Trend((0,) * 24, (0,) * 24, number)


def due(hours: float, messages: int = 3) -> SubQueueDepth:
    return replace(EMPTY, messages=9, due=messages, next_due_at=NOW - timedelta(hours=hours))


OUTAGE = OutageState(NOW - timedelta(hours=2), NOW, "ab12")
CLAIM = ClaimView("key", "main", 1, NOW, expired=False)


@pytest.mark.parametrize(
    ("seen", "trend", "found"),
    [
        (QUIET, None, []),
        (QUIET, growth(5), []),  # it has left again
        (replace(QUIET, state="disabled", reason="no driver"), None, [("halted", "disabled: no driver")]),
        (replace(QUIET, state="stopped"), None, [("halted", "stopped")]),
        (replace(QUIET, poison_state="faulted", poison_reason="5 rollbacks"), None, [("halted", "faulted: 5 rollbacks")]),
        (replace(QUIET, outage=OUTAGE), None, [("outage", "What its handler needs is away since 2026-03-01 10:00 UTC.")]),
        (replace(QUIET, poison_outage=OUTAGE), None, [("outage", "What its handler needs is away since 2026-03-01 10:00 UTC.")]),
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), None, []),
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), growth(0), []),
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), growth(-2), []),
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), growth(2), [("poison_growing", "2 poison messages more than an hour ago.")]),
        (holding(SubQueue.POISON, replace(EMPTY, messages=1)), growth(2), [("poison_growing", "1 poison message more than an hour ago.")]),
        (holding(SubQueue.RETRY, due(0.9)), None, []),
        (
            holding(SubQueue.RETRY, due(1)),
            None,
            [("overdue", "3 messages in retry should have been returned; the oldest since 2026-03-01 11:00 UTC.")],
        ),
        (
            holding(SubQueue.POSTPONED, due(2, 1)),
            None,
            [("overdue", "1 message in postponed should have been returned; the oldest since 2026-03-01 10:00 UTC.")],
        ),
        (replace(QUIET, claims=(CLAIM,)), None, []),
        (
            replace(QUIET, claims=(CLAIM, replace(CLAIM, messages=7, expired=True))),
            None,
            [("expired_claim", "A pass that held 7 messages has not answered in time; the next one goes on with them.")],
        ),
    ],
)
def test_each_need_says_what_is_the_matter(seen: QueueOverview, trend: Trend | None, found: list[tuple[str, str]]) -> None:
    assert [(each["kind"], each["text"]) for each in needs(seen, trend)] == found


def test_the_most_urgent_comes_first() -> None:
    everything = replace(
        QUIET,
        state="disabled",
        outage=OUTAGE,
        sub_queues={**QUIET.sub_queues, SubQueue.POISON: replace(EMPTY, messages=9), SubQueue.RETRY: due(5)},
        claims=(replace(CLAIM, expired=True),),
    )
    assert [each["kind"] for each in needs(everything, growth(3))] == ["halted", "outage", "poison_growing", "overdue", "expired_claim"]
