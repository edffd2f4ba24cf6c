"""The dead-letter header of WebSphere MQ, byte by byte."""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.websphere_mq import LENGTH, DeadLetterHeader, build, parse
from airflow_poison.values.errors import DeadLetterHeaderError

PUT_AT = datetime(2013, 1, 2, 3, 4, 5, 670_000, tzinfo=UTC)
HEADER = DeadLetterHeader(reason=2362, destination="ORDERS", queue_manager="QM1", format="MQSTR", put_at=PUT_AT)


def padded(text: str, width: int) -> bytes:
    return text.encode().ljust(width, b" ")


@pytest.mark.parametrize(
    ("name", "offset", "expected"),
    [
        ("StrucId", 0, b"DLH "),
        ("Version", 4, b"\x00\x00\x00\x01"),
        ("Reason", 8, b"\x00\x00\x09\x3a"),
        ("DestQName", 12, padded("ORDERS", 48)),
        ("DestQMgrName", 60, padded("QM1", 48)),
        ("Encoding", 108, b"\x00\x00\x01\x11"),
        ("CodedCharSetId", 112, b"\x00\x00\x04\xb8"),
        ("Format", 116, b"MQSTR   "),
        ("PutApplType", 124, b"\x00\x00\x00\x1c"),
        ("PutApplName", 128, padded("airflow-poison", 28)),
        ("PutDate", 156, b"20130102"),
        ("PutTime", 164, b"03040567"),
    ],
    ids=lambda value: f"WMQ-25 {value}" if isinstance(value, str) else "",
)
def test_each_field_has_its_place(name: str, offset: int, expected: bytes) -> None:
    built = build(HEADER)

    assert len(built) == LENGTH == 172
    assert built[offset : offset + len(expected)] == expected


def test_wmq_25_the_time_is_told_in_utc() -> None:
    east = PUT_AT.astimezone(timezone(timedelta(hours=9)))

    assert build(replace(HEADER, put_at=east)) == build(HEADER)


def test_wmq_25_what_is_not_told_is_blank() -> None:
    built = build(DeadLetterHeader(reason=2364, destination="Q"))

    assert built[60:108] == b" " * 48
    assert built[116:124] == b" " * 8
    assert built[156:172] == b" " * 16
    assert parse(built).put_at is None


def test_wmq_25_texts_are_cut_to_their_fields_and_kept_in_ascii() -> None:
    built = build(replace(HEADER, destination="Q" * 100, queue_manager="Köln", format="TOO LONG A NAME"))

    assert len(built) == 172
    assert (parse(built).destination, parse(built).queue_manager, parse(built).format) == ("Q" * 48, "K?ln", "TOO LONG")


NAMES = st.text("ABCXYZabcxyz0189._", max_size=28)
NUMBERS = st.integers(-(2**31), 2**31 - 1)
INSTANTS = st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1)).map(  # noqa: DTZ001  (the zone follows)
    lambda at: at.replace(microsecond=at.microsecond // 10_000 * 10_000, tzinfo=UTC)
)


@given(
    st.builds(
        DeadLetterHeader,
        reason=NUMBERS,
        destination=NAMES,
        queue_manager=NAMES,
        encoding=NUMBERS,
        coded_char_set_id=NUMBERS,
        format=st.text("ABC012", max_size=8),
        application_type=NUMBERS,
        application=NAMES,
        put_at=st.none() | INSTANTS,
    )
)
def test_wmq_25_what_was_built_can_be_parsed(header: DeadLetterHeader) -> None:
    assert len(build(header)) == 172
    assert parse(build(header)) == header


def test_wmq_25_a_header_with_the_lowest_byte_first_is_read_too() -> None:
    big = build(HEADER)
    fields = struct.unpack(">4sii48s48sii8si28s8s8s", big)

    assert parse(struct.pack("<4sii48s48sii8si28s8s8s", *fields)) == HEADER


@pytest.mark.parametrize(
    ("bytes_", "part"),
    [
        pytest.param(b"", "0 bytes", id="empty"),
        pytest.param(build(HEADER)[:-1], "171 bytes", id="too short"),
        pytest.param(build(HEADER) + b" ", "173 bytes", id="too long"),
        pytest.param(b"RFH " + build(HEADER)[4:], "RFH ", id="another structure"),
        pytest.param(b"DLH " + b"\0\0\0\2" + build(HEADER)[8:], "version 00000002", id="another version"),
        pytest.param(build(HEADER)[:156] + b"20131302" + build(HEADER)[164:], "20131302", id="no date"),
    ],
)
def test_wmq_25_bytes_that_are_no_header_are_refused(bytes_: bytes, part: str) -> None:
    with pytest.raises(DeadLetterHeaderError, match=part):
        parse(bytes_)
