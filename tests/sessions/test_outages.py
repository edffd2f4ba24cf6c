"""Sessions that watch for an outage, in a child process and inline: they stop, leave a verdict, and charge nobody for what they try besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison.delivery.handlers import Batching
from airflow_poison.delivery.journal import STATE_MASK, MessageState, attempts_of, crashes_of
from airflow_poison.delivery.outage import Detection, OutageVerdict
from airflow_poison.rules.outage import Outage
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.failures import FailureKind, origin
from tests.given.messages import batch_of
from tests.sessions.conftest import policy

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_poison.rules.policy import Policy
    from tests.sessions.conftest import Opener

OUTAGE = Outage(at_least=20, probe=5)
SYSTEMS = pytest.mark.parametrize(
    "system", [policy(), policy(max_batch_size=3), ServiceBroker(), ServiceBroker(max_queue_readers=3)], ids=["msmq", "batches", "broker", "readers"]
)


@SYSTEMS
def test_a_session_stops_where_messages_fail_alike_and_says_why(session: Opener, isolation: str, journals: Path, system: Policy) -> None:
    report = session(isolation=isolation, policy=system, detection=Detection(OUTAGE, str(journals))).deliver(batch_of(["raise"] * 60))

    verdict = OutageVerdict.read(journals)
    assert verdict is not None
    assert verdict.error.startswith("ValueError: bad ")
    assert {origin(failure) for failure in report.failures.values()} == {verdict.fingerprint}
    assert 0 < int(attempts_of(report.words).sum()) <= OUTAGE.at_least
    assert report.failures.keys() == {row for row, value in enumerate(report.words.tolist()) if attempts_of(value)}
    assert MessageState.HALTED not in report.words & STATE_MASK


@SYSTEMS
def test_a_session_delivers_nothing_after_a_verdict_of_another_task(session: Opener, isolation: str, journals: Path, system: Policy) -> None:
    OutageVerdict("0" * 12, "gone", "2013-01-01T00:00:00+00:00").write(journals)

    report = session(isolation=isolation, policy=system, detection=Detection(OUTAGE, str(journals))).deliver(batch_of(["ok"] * 9))

    assert not report.words.any()


@SYSTEMS
def test_what_is_tried_besides_commits_or_is_as_it_was(session: Opener, isolation: str, journals: Path, system: Policy) -> None:
    """The first message fails so often that others are tried; they are fine, or fail once, uncounted, and then in their turn."""
    report = session(isolation=isolation, policy=system, detection=Detection(Outage(at_least=3, probe=2), str(journals))).deliver(
        batch_of(["raise", "unprocessable", *["ok"] * 30])
    )

    assert OutageVerdict.read(journals) is None
    if isinstance(system, ServiceBroker):
        assert (report.words & STATE_MASK)[0] == MessageState.HALTED
        if system.max_queue_readers == 1:  # with several a commit of another reader begins the count anew
            assert (attempts_of(report.words)[:2] == [5, 0]).all()
        return
    assert (attempts_of(report.words)[:2] == [3, 1]).all()
    assert ((report.words & STATE_MASK)[2:] == MessageState.COMMITTED).all()


@pytest.mark.parametrize("system", [policy(), ServiceBroker()], ids=["msmq", "broker"])
def test_a_crash_is_no_outage_and_is_charged_also_in_a_probe(session: Opener, journals: Path, system: Policy) -> None:
    detection = Detection(OUTAGE, str(journals), expects="f" * 12)

    report = session(isolation="process", policy=system, detection=detection).deliver(batch_of(["kill"] * 4))

    assert OutageVerdict.read(journals) is None
    assert int(crashes_of(report.words).sum()) >= 3
    assert {failure.kind for failure in report.failures.values()} == {FailureKind.CRASH}


@pytest.mark.parametrize("system", [policy(), ServiceBroker()], ids=["msmq", "broker"])
def test_a_batch_that_fails_for_an_outage_is_not_searched_through(session: Opener, isolation: str, journals: Path, system: Policy) -> None:
    report = session(
        "tests.sessions.frame_handlers:script", isolation, policy=system, detection=Detection(OUTAGE, str(journals)), batching=Batching("arrow")
    ).deliver(batch_of(["raise"] * 600))

    verdict = OutageVerdict.read(journals)
    assert verdict is not None
    assert verdict.error.startswith("ValueError: bad ")
    assert {origin(failure) for failure in report.failures.values()} <= {verdict.fingerprint}
    assert MessageState.HALTED not in report.words & STATE_MASK
    assert report.searched.unstable == ()
    assert report.searched.rows_handed <= 600 + 3 * 100


def test_a_search_whose_last_part_finds_an_outage_tells_of_no_unstable_batch(session: Opener, journals: Path) -> None:
    """One message of the first 201 is tried alone, so that the third part is that of the messages that fail."""
    report = session(
        "tests.sessions.frame_handlers:script", "none", policy=policy(), detection=Detection(OUTAGE, str(journals)), batching=Batching("arrow")
    ).deliver(batch_of([*["ok"] * 201, *["raise"] * 50]))

    assert OutageVerdict.read(journals) is not None
    assert ((report.words & STATE_MASK)[:201] == MessageState.COMMITTED).all()
    assert not report.words[201:].any()
    assert report.searched.unstable == ()


def test_a_crash_in_a_batch_is_charged_to_its_message_and_is_no_outage(session: Opener, journals: Path) -> None:
    words: list[bytes | str | None] = ["ok"] * 150
    words[70] = "kill"
    report = session(
        "tests.sessions.frame_handlers:script", "process", policy=policy(), detection=Detection(OUTAGE, str(journals)), batching=Batching("arrow")
    ).deliver(batch_of(words))

    assert OutageVerdict.read(journals) is None
    assert (report.words & STATE_MASK == MessageState.COMMITTED).sum() == 149
    assert crashes_of(report.words)[70] == attempts_of(report.words)[70] > 0


def test_a_verdict_that_nobody_may_write_any_more_is_not_written(journals: Path) -> None:
    """A later holder of the claim has shut this one out: it has renamed the folder."""
    journals.rmdir()

    OutageVerdict("0" * 12, "gone", "2013-01-01T00:00:00+00:00").write(journals)

    assert not journals.exists()
