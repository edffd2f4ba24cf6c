"""Several server sessions of one endpoint: they run side by side, and their results are taken in the order of the sessions."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from airflow_poison.delivery.journal import MessageState
from airflow_poison.rules.decisions import Block, Counts, Dispose, Halt, Halted
from airflow_poison.rules.default_messaging import DefaultMessaging
from airflow_poison.rules.policy import Opening
from airflow_poison.values.events import EventType
from tests.given.endpoints import broker, deliveries, processes, saying, specification, written
from tests.given.messages import batch_of
from tests.given.reading import COMMITTED, UNTOUCHED, told
from tests.sessions.zygotes import living_sessions

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.delivery.session import BatchReport
    from tests.sessions.conftest import Opener

RECORDED = "tests.sessions.endpoint_handlers:recorded"


def happened(report: BatchReport, kind: EventType) -> list[int | None]:
    assert report.decided is not None
    return [event.lookup_id for event in report.decided.events if event.type is kind]


def end_of(report: BatchReport, row: int) -> Any:
    assert report.decided is not None
    return report.decided.ends[row]


def test_wmq_17_as_many_messages_are_processed_at_the_same_time_as_there_are_sessions(session: Opener, tmp_path: Path) -> None:
    """Each handler waits until five handlers have been called."""
    report = session(RECORDED, policy=specification(5)).deliver(batch_of(saying(tmp_path, *["meet 5"] * 5)))

    assert told(report.words) == [COMMITTED] * 5
    assert len(set.union(*processes(tmp_path).values())) == 5


def test_wmq_17_never_more_than_that(session: Opener, tmp_path: Path) -> None:
    session(RECORDED, policy=specification(2)).deliver(batch_of(saying(tmp_path, *["ok"] * 20)))

    lines = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    under_way = 0
    for what, *_ in lines:
        under_way += 1 if what == "call" else -1
        assert 0 <= under_way <= 2


def test_results_are_taken_in_the_order_of_the_sessions_whoever_ends_first(session: Opener, tmp_path: Path) -> None:
    bodies = saying(tmp_path, "after-raise 1", "after-raise 2", "after-raise 3", "ok")

    report = session(RECORDED, policy=specification(4, failures=3), record_all=True).deliver(batch_of(bodies))

    assert written(tmp_path, "done") == [3]
    assert happened(report, EventType.DELIVERED) == [0, 1, 2, 3]
    assert happened(report, EventType.ROLLED_BACK) == [0, 1, 2]
    assert happened(report, EventType.COMMITTED) == [3]
    assert isinstance(end_of(report, 2), Halt), "the third failure in session order, although it was the first that happened"


@pytest.mark.parametrize(("early", "delivered"), [(0, 5), (1, 6), (2, 7)])
def test_wmq_20_what_was_handed_out_before_the_stop_is_still_processed(session: Opener, tmp_path: Path, early: int, delivered: int) -> None:
    """WMQ-E3: ten poison messages, N 3, S 5, BOTHRESH 5."""
    opened = session(RECORDED, policy=specification(5, failures=3, backout_threshold=5, early_hand_out=early))

    report = opened.deliver(batch_of(saying(tmp_path, *["raise"] * 10)))

    assert deliveries(tmp_path) == Counter(range(delivered))
    assert report.decided is not None
    assert (report.halted, report.decided.halt) == (True, end_of(report, 2))
    assert [row for row in range(10) if isinstance(report.decided.ends.get(row), Halt)] == [2]
    assert report.decided.halt is not None
    assert report.decided.halt.how is Halted.STOPPED
    expected = [(MessageState.UNTOUCHED, 1, 0)] * delivered + [UNTOUCHED] * (10 - delivered)
    expected[2] = (MessageState.HALTED, 1, 0)
    assert told(report.words) == expected
    assert [end_of(report, row).counts for row in range(delivered)] == [Counts(1)] * delivered
    assert opened.counters() == {"sequential_failures": delivered}


def test_after_the_stop_no_further_batch_is_received(session: Opener, tmp_path: Path) -> None:
    opened = session(RECORDED, policy=specification(2, failures=1))
    opened.deliver(batch_of(saying(tmp_path, "raise", "ok")))

    second = opened.deliver(batch_of(saying(tmp_path, "ok", "ok"), first_id=2))

    assert told(second.words) == [UNTOUCHED] * 2
    assert second.halted
    assert deliveries(tmp_path) == Counter([0, 1])


def test_wmq_18_any_success_in_any_session_begins_the_count_anew(session: Opener, tmp_path: Path) -> None:
    bodies = saying(tmp_path, *["raise", "raise", "ok"] * 4)

    report = session(RECORDED, policy=specification(3, failures=3, backout_threshold=2)).deliver(batch_of(bodies))

    assert [row for row, (state, *_) in enumerate(told(report.words)) if state is MessageState.COMMITTED] == [2, 5, 8, 11]
    assert isinstance(end_of(report, 3), Halt), "back at the top no success is left between 0, 1 and 3"


def test_wmq_19_different_poison_messages_stop_it_although_none_is_requeued(session: Opener, tmp_path: Path) -> None:
    report = session(RECORDED, policy=specification(2, failures=4, backout_threshold=3)).deliver(batch_of(saying(tmp_path, *["raise"] * 6)))

    assert deliveries(tmp_path) == Counter({0: 1, 1: 1, 2: 1, 3: 1})
    assert [attempts for _, attempts, _ in told(report.words)] == [1, 1, 1, 1, 0, 0]
    assert report.halted


def test_wmq_29_a_sweep_goes_on_behind_the_last_message_and_then_from_the_top(session: Opener, tmp_path: Path) -> None:
    report = session(RECORDED, policy=specification(2, backout_threshold=3), record_all=True).deliver(
        batch_of(saying(tmp_path, "raise", "ok", "raise", "ok", "raise"))
    )

    assert happened(report, EventType.DELIVERED) == [0, 1, 2, 3, 4, 0, 2, 4, 0, 2, 4]
    assert [state for state, *_ in told(report.words)] == [
        MessageState.ENDED,
        MessageState.COMMITTED,
        MessageState.ENDED,
        MessageState.COMMITTED,
        MessageState.ENDED,
    ]
    assert isinstance(end_of(report, 0), Dispose)


def test_wmq_29_with_one_session_it_is_always_the_top_of_the_queue(session: Opener, tmp_path: Path) -> None:
    session(RECORDED, policy=specification(1, backout_threshold=2)).deliver(batch_of(saying(tmp_path, "raise", "ok", "raise")))

    assert written(tmp_path) == [0, 0, 1, 2, 2]


def test_wmq_8_the_counter_goes_on_where_an_earlier_endpoint_left_it(session: Opener, tmp_path: Path) -> None:
    opened = session(RECORDED, policy=specification(1, failures=3), opening=Opening(counters={"sequential_failures": 2}))

    report = opened.deliver(batch_of(saying(tmp_path, "raise", "ok")))

    assert told(report.words) == [(MessageState.HALTED, 1, 0), UNTOUCHED]
    assert opened.counters() == {"sequential_failures": 3}


def test_sb_23_without_readers_nothing_is_received_and_the_pass_ends(session: Opener, isolation: str) -> None:
    opened = session(RECORDED, isolation, policy=broker(0))

    report = opened.deliver(batch_of(["never"] * 3))

    assert told(report.words) == [UNTOUCHED] * 3
    assert (report.halted, report.decided is not None and dict(report.decided.ends)) == (False, {})


def test_a_session_that_is_not_needed_is_not_started(session: Opener) -> None:
    opened = session("tests.sessions.sample_handlers:script", policy=specification(6, backout_threshold=4))

    for first_id in range(8):
        opened.deliver(batch_of(["raise"], first_id))

    assert len(living_sessions()) == 1


def test_sb_23_the_most_readers_that_there_can_be_cost_no_more_than_those_that_are_needed(session: Opener) -> None:
    opened = session("tests.sessions.sample_handlers:script", policy=broker(32_767))
    began = psutil.Process().num_fds()

    report = opened.deliver(batch_of(["ok"] * 3))

    assert told(report.words) == [COMMITTED] * 3
    assert len(living_sessions()) == 3
    assert psutil.Process().num_fds() - began < 30


def test_sessions_load_their_handler_at_the_same_time(session: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three children waits at its import for the two others."""
    (tmp_path / "slow_to_load.py").write_text(
        "import os, pathlib, time\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "if (folder / 'opened').exists():\n"
        "    (folder / f'loading-{os.getpid()}').touch()\n"
        "    overdue = time.monotonic() + 20\n"
        "    while len(list(folder.glob('loading-*'))) < 3:\n"
        "        assert time.monotonic() < overdue, 'alone'\n"
        "        time.sleep(0.005)\n"
        "from tests.sessions.sample_handlers import script\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    opened = session("slow_to_load:script", policy=specification(5))
    (tmp_path / "opened").touch()

    assert told(opened.deliver(batch_of(["ok"] * 3)).words) == [COMMITTED] * 3
    assert len(list(tmp_path.glob("loading-*"))) == 3


@pytest.mark.parametrize("readers", [1, 3])
def test_inline_the_results_are_those_of_processes(session: Opener, readers: int) -> None:
    """Also several sessions of a process without children: one after the other, in the order of the sessions."""
    bodies: list[bytes | str | None] = ["ok", "raise-until 1", "raise", "unprocessable", "ok", "postpone", "raise-until 2", "lookup", "raise", "ok"]
    policy = specification(readers, failures=5, backout_threshold=3)
    given: dict[str, Any] = {"policy": policy, "unprocessable": ("builtins:LookupError",), "record_all": True}

    there, here = (session(isolation=kind, partition=kind, **given).deliver(batch_of(bodies)) for kind in ("process", "none"))

    assert there.words.tolist() == here.words.tolist()
    assert {row: (failure.kind, failure.type, failure.text) for row, failure in there.failures.items()} == {
        row: (failure.kind, failure.type, failure.text) for row, failure in here.failures.items()
    }
    assert there.decided is not None
    assert here.decided is not None
    assert [(event.type, event.lookup_id) for event in there.decided.events] == [(event.type, event.lookup_id) for event in here.decided.events]
    assert [(row, type(end), end.counts) for row, end in sorted(there.decided.ends.items())] == [
        (row, type(end), end.counts) for row, end in sorted(here.decided.ends.items())
    ]


def test_sb_13_a_commit_that_slipped_in_is_followed_by_the_halt(session: Opener, isolation: str, tmp_path: Path) -> None:
    """The second rollback disables the queue in the background; one more delivery slips in, and commits. No message is the cause."""
    opened = session(RECORDED, isolation, policy=broker(1, rollback_limit=2, disabling="background"), stop_file=str(tmp_path / "stop"))

    first = opened.deliver(batch_of(saying(tmp_path, "raise-until 2", "ok")))
    second = opened.deliver(batch_of(saying(tmp_path, "ok"), first_id=2))

    assert told(first.words) == [(MessageState.COMMITTED, 2, 0), UNTOUCHED]
    assert first.decided is not None
    assert first.decided.halt is not None
    assert (first.decided.halt.how, dict(first.decided.ends)) == (Halted.DISABLED, {})
    assert (first.halted, second.halted, told(second.words)) == (True, True, [UNTOUCHED])
    assert (tmp_path / "stop").exists()


def test_dmp_14_a_message_that_waits_blocks_what_is_behind_it_in_every_batch(session: Opener, isolation: str, tmp_path: Path) -> None:
    policy = DefaultMessaging(max_failed_deliveries=2, exception_destination="None")
    opened = session(RECORDED, isolation, policy=policy)

    first = opened.deliver(batch_of(saying(tmp_path, "ok", "raise", "ok")))
    second = opened.deliver(batch_of(saying(tmp_path, "ok"), first_id=3))

    assert told(first.words) == [COMMITTED, (MessageState.ENDED, 2, 0), UNTOUCHED]
    assert isinstance(end_of(first, 1), Block)
    assert (first.halted, told(second.words)) == (False, [UNTOUCHED])
    assert written(tmp_path) == [0, 1, 1]


@pytest.mark.parametrize("sessions", [2, 5, 40])
def test_inline_the_number_of_sessions_changes_no_result_where_no_rule_looks_at_it(session: Opener, sessions: int) -> None:
    words = ["ok", "raise-until 1", "raise", "unprocessable", "postpone", "raise-until 2", "ok"]
    batch = batch_of([word for word in words for _ in range(3)])

    one, several = (session(isolation="none", partition=str(number), policy=specification(number)).deliver(batch) for number in (1, sessions))

    assert one.words.tolist() == several.words.tolist()
    assert one.failures.keys() == several.failures.keys()


def test_a_timeout_of_a_century_is_one(session: Opener) -> None:
    report = session("tests.sessions.sample_handlers:script", policy=specification(2, transaction_timeout=timedelta(days=36_500))).deliver(
        batch_of(["ok", "raise-until 1"])
    )

    assert told(report.words) == [COMMITTED, (MessageState.COMMITTED, 1, 0)]


def test_empty_batches_and_batches_of_one(session: Opener, isolation: str) -> None:
    opened = session("tests.sessions.sample_handlers:script", isolation, policy=specification(3))

    assert told(opened.deliver(batch_of([])).words) == []
    assert told(opened.deliver(batch_of([None])).words) == [COMMITTED]
    assert told(opened.deliver(batch_of(["raise-until 1"], 1)).words) == [(MessageState.COMMITTED, 1, 0)]


def test_thousands_of_messages_in_several_batches(session: Opener, tmp_path: Path) -> None:
    bodies: list[bytes | str | None] = ["ok"] * 5_000
    for row in (0, 17, 2_499, 2_500, 4_999):
        bodies[row] = "raise"
    opened = session("tests.sessions.sample_handlers:script", policy=specification(3))

    reports = [opened.deliver(batch_of(bodies[start : start + 1_250], start)) for start in range(0, 5_000, 1_250)]

    ended = [
        number * 1_250 + row
        for number, report in enumerate(reports)
        for row, (state, *_) in enumerate(told(report.words))
        if state is MessageState.ENDED
    ]
    assert ended == [0, 17, 2_499, 2_500, 4_999]
    assert sum(told(report.words).count(COMMITTED) for report in reports) == 4_995
