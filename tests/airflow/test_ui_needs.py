"""What of a queue needs attention: in words, the most urgent first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_poison.passes.browse import ClaimView, QueueOverview
from airflow_poison.store.control import OutageState
from airflow_poison.store.files import PlanState, SubQueueDepth
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


def new(number: int) -> Trend:
    return Trend((number,) + (0,) * 23, (0,) * 24, 0)


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
        (replace(QUIET, outage=OUTAGE), None, [("outage", "What its handler needs is away since 2026-03-01T10:00:00+00:00.")]),
        (replace(QUIET, poison_outage=OUTAGE), None, [("outage", "What its handler needs is away since 2026-03-01T10:00:00+00:00.")]),
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), None, [("poison", "9 poison messages.")]),  # until somebody has dealt with it
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), growth(0), [("poison", "9 poison messages.")]),
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), growth(-2), [("poison", "9 poison messages.")]),
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), new(4), [("poison", "9 poison messages, 4 of them new since yesterday.")]),
        (holding(SubQueue.POISON, replace(EMPTY, messages=3)), new(4), [("poison", "3 poison messages, 3 of them new since yesterday.")]),
        (holding(SubQueue.POISON, replace(EMPTY, messages=9)), growth(2), [("poison_growing", "9 poison messages, 2 more than an hour ago.")]),
        (holding(SubQueue.POISON, replace(EMPTY, messages=1)), growth(2), [("poison_growing", "1 poison message, 1 more than an hour ago.")]),
        (holding(SubQueue.RETRY, due(0.9)), None, []),
        (
            holding(SubQueue.RETRY, due(1)),
            None,
            [("overdue", "3 messages in retry should have been returned; the oldest since 2026-03-01T11:00:00+00:00.")],
        ),
        (
            holding(SubQueue.POSTPONED, due(2, 1)),
            None,
            [("overdue", "1 message in postponed should have been returned; the oldest since 2026-03-01T10:00:00+00:00.")],
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
    assert [(each["kind"], each["text"]) for each in needs(seen, trend, {})] == found


@pytest.mark.parametrize(
    ("state", "kind", "text"),
    [
        (PlanState.FAILED, "plan", "Plan p1 has failed; its page says why."),
        (PlanState.STOPPED, "plan", "Plan p1 was stopped by its canary: too few of the messages that went first were settled."),
        (PlanState.PAUSED, "plan", "Plan p1 is paused: nothing more happens until it is resumed."),
        (PlanState.RUNNING, "plan_at_work", "Plan p1 is under way."),
        (PlanState.CANARY, "plan_at_work", "Plan p1 waits for its canary."),
        (PlanState.UNDOING, "plan_at_work", "Plan p1 is being undone."),
    ],
)
def test_a_plan_that_has_not_ended_is_told_until_it_has(state: PlanState, kind: str, text: str) -> None:
    assert list(needs(QUIET, None, {"p1": state.value})) == [{"kind": kind, "text": text, "plan": "p1"}]


def test_the_most_urgent_comes_first() -> None:
    everything = replace(
        QUIET,
        state="disabled",
        outage=OUTAGE,
        sub_queues={**QUIET.sub_queues, SubQueue.POISON: replace(EMPTY, messages=9), SubQueue.RETRY: due(5)},
        claims=(replace(CLAIM, expired=True),),
    )
    assert [each["kind"] for each in needs(everything, growth(3), {"p1": "running", "p2": "failed"})] == [
        "halted",
        "outage",
        "plan",
        "poison_growing",
        "overdue",
        "expired_claim",
        "plan_at_work",
    ]
