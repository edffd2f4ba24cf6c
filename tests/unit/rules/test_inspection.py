"""What an inspection prints, and whether it counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.decisions import Counts, Halt, Return
from airflow_poison.rules.queue_disabling import Inspection, Printed, printed
from airflow_poison.rules.service_broker import ServiceBroker
from airflow_poison.values.errors import InputError
from tests.unit.rules.entries import NOW, RAISED, message


@pytest.mark.parametrize(
    ("body", "validation", "text"),
    [
        pytest.param(None, "", "No message available.", id="SB-27 no row"),
        pytest.param(None, "X", "No message available.", id="SB-27 no row, letter left over"),
        pytest.param(b"", "E", "Empty message.", id="SB-27 E"),
        pytest.param(b"<a/>", "X", "<a/>", id="SB-E8 d1"),
        pytest.param("<ä/>".encode(), "X", "<ä/>", id="SB-27 X in UTF-8"),
        pytest.param("\ufeff<ä/>".encode(), "X", "<ä/>", id="SB-27 X in UTF-8 with a mark"),
        pytest.param("<ä/>".encode("utf-16-le"), "X", "<ä/>", id="SB-27 X as nvarchar"),
        pytest.param("<ä/>".encode("utf-16"), "X", "<ä/>", id="SB-27 X as nvarchar with a mark"),
        pytest.param("<ä/>".encode("utf-16-be"), "X", "<ä/>", id="SB-27 X, the other byte order"),
        pytest.param(b"<a>\xff</a>", "X", "<a>\\xff</a>", id="SB-27 X that is no text"),
        pytest.param(b"\x00\xff", "N", "No validation -- binary message:\n0x00FF", id="SB-E8 d5"),
    ],
)
def test_what_is_printed(body: bytes | None, validation: str, text: str) -> None:
    assert str(printed(body, validation)) == text


def test_sb_27_e8_a_body_without_validation_is_printed_raw() -> None:
    assert printed(b"\x00\xff", "N") == Printed("No validation -- binary message:", b"\x00\xff")
    assert printed(b"", "N") == Printed("No validation -- binary message:", b"")


@pytest.mark.parametrize("letter", ["E", "E ", " E"])
def test_sb_27_q_9_the_letter_is_trimmed(letter: str) -> None:
    assert printed(b"", letter).text == "Empty message."


@pytest.mark.parametrize("letter", ["", "Y", "EX", "x"])
def test_sb_27_another_letter_is_none(letter: str) -> None:
    with pytest.raises(InputError, match="E, N, X"):
        printed(b"a", letter)


@given(st.binary(), st.sampled_from("ENX"))
def test_sb_27_any_body_can_be_printed(body: bytes, letter: str) -> None:
    str(printed(body, letter)).encode("utf-8", "surrogatepass")


E8 = [("d1", b"<a/>", "X"), ("d5", b"\x01", "N"), ("d6", b"", "E"), ("d1", None, ""), ("d1", b"<a/>", "X"), ("d1", b"<a/>", "X")]
"""Inspections one after the other: the conversation, what is received of it (nothing while a reader holds it), its validation."""


def inspect_all(mode: Inspection) -> list[tuple[str, Return | Halt | None, int]]:
    """Return what each inspection of SB-E8 prints, what becomes of its message, and the counter."""
    receiver, told = ServiceBroker(inspection=mode).open(), []
    for group, body, validation in E8:
        inspected = replace(message(abort_count=2), group=group)
        decision = None if body is None else mode.give_back(receiver, inspected, NOW)
        told.append((printed(body, validation).text, decision, receiver.counters().get("rollbacks", 0)))
    return told


@pytest.mark.parametrize("mode", [Inspection.EXEMPT, Inspection.BROWSE])
def test_sb_28_33_e8_an_inspection_that_does_not_count_leaves_everything_as_it_was(mode: Inspection) -> None:
    back = Return(Counts(2, 0))

    assert inspect_all(mode) == [
        ("<a/>", back, 0),
        ("No validation -- binary message:", back, 0),
        ("Empty message.", back, 0),
        ("No message available.", None, 0),
        ("<a/>", back, 0),
        ("<a/>", back, 0),
    ]


def test_sb_28_33_e8_five_strict_inspections_in_a_row_disable_the_queue() -> None:
    *before, (text, last, counter) = inspect_all(Inspection.STRICT)

    back = Return(Counts(3, 0))
    assert [(decision, count) for _, decision, count in before] == [(back, 1), (back, 2), (back, 3), (None, 3), (back, 4)]
    assert (text, counter) == ("<a/>", 5)
    assert isinstance(last, Halt)
    assert last.counts == Counts(3, 0)


def test_sb_33_a_strict_inspection_counts_with_the_rollbacks_of_the_application() -> None:
    receiver = ServiceBroker().open()
    for _ in range(4):
        receiver.transaction_aborted(became_poison=False)
        receiver.after_rollback(message(), RAISED, NOW)

    assert isinstance(Inspection.STRICT.give_back(receiver, message(), NOW), Halt)


def test_sb_29_an_inspection_waits_two_seconds_for_a_message_that_is_held() -> None:
    assert Inspection.EXEMPT.wait == Inspection.STRICT.wait == timedelta(seconds=2)
    assert Inspection.BROWSE.wait == timedelta(0)


def test_sb_33_only_browsing_works_on_a_queue_that_is_off() -> None:
    assert [mode for mode in Inspection if not mode.receives] == [Inspection.BROWSE]
    assert ServiceBroker().inspection is Inspection.EXEMPT
