"""SB-E10 in real sessions: failures tracked in the conversation, the queue's own counter at 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_poison import track_failures
from airflow_poison.delivery.journal import MessageState
from airflow_poison.dialogs.system_messages import ErrorDocument
from tests.given.endpoints import broker, written
from tests.given.reading import told
from tests.sessions.dialogs import Seen, dialog_batch, dialog_state, endpoint, error, message

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sessions.conftest import Opener

TRACKED = track_failures("tests.sessions.dialog_handlers:talk")


def test_sb_e10_the_fourth_failure_ends_the_conversation(session: Opener, journals: Path, isolation: str) -> None:
    folder, seen = journals.parent, Seen()
    with session(TRACKED, isolation, policy=broker(1), dialog_state=dialog_state()) as opened:
        report = opened.deliver(
            dialog_batch([message("d1", 1, f"{folder} answer no,raise"), message("d1", 2, f"{folder} ok"), message("d2", 1, f"{folder} answer")])
        )
        assert opened.counters() == {}, "the queue's own counter"
    seen.add(report)

    assert written(folder) == [0, 0, 0, 0, 2]
    assert not report.halted
    assert told(report.words) == [(MessageState.ENDED, 0, 0), (MessageState.ENDED, 0, 0), (MessageState.COMMITTED, 0, 0)]
    assert [(sent.envelope.conversation_id, sent.body) for sent in seen.sent] == [
        ("d1", ErrorDocument(500, "Unable to process message.").to_xml()),
        ("d2", b"to 2"),
    ]
    assert seen.state("d1") == "CD"


@pytest.mark.parametrize("failures", [0, 2])
def test_sb_e10_failures_are_kept_with_the_conversation_over_passes(session: Opener, journals: Path, isolation: str, failures: int) -> None:
    folder, seen = journals.parent, Seen()
    with session(TRACKED, isolation, policy=broker(1), dialog_state=dialog_state([endpoint(failures=failures)])) as opened:
        seen.add(opened.deliver(dialog_batch([message("d1", 1, f"{folder} raise")])))

    assert len(written(folder)) == 4 - failures


def test_sb_e10_an_error_received_ends_it_and_clears(session: Opener, isolation: str) -> None:
    seen = Seen()
    with session(TRACKED, isolation, policy=broker(1), dialog_state=dialog_state([endpoint(failures=2)])) as opened:
        report = opened.deliver(dialog_batch([error()]))
    seen.add(report)

    assert told(report.words) == [(MessageState.COMMITTED, 0, 0)]
    assert (seen.state(), seen.endpoints["d1"].failures) == ("CD", 0)


def test_what_a_tracked_handler_raised_is_in_the_log(session: Opener, journals: Path, caplog: pytest.LogCaptureFixture) -> None:
    with session(TRACKED, "process", policy=broker(1), dialog_state=dialog_state()) as opened:
        opened.deliver(dialog_batch([message("d1", 1, f"{journals.parent} raise")]))

    printed = caplog.text
    assert "1 of 3 forgiven" in printed
    assert "ValueError: bad 0" in printed
