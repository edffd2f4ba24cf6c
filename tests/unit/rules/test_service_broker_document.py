"""The document of the event Broker:Queue Disabled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.rules.queue_disabling import CONTRACT, EVENT_TYPE, MESSAGE_TYPE, TRACE_EVENT, TRACE_EVENT_CLASS, QueueDisabledDocument
from airflow_poison.values.errors import InputError

AT = datetime(2013, 1, 1, 12, 0, 0, 700_000, tzinfo=UTC)
DOCUMENT = QueueDisabledDocument(queue="ExpenseQueue", post_time=AT, database_name="AdventureWorks")
XML = (
    "<EVENT_INSTANCE><EventType>BROKER_QUEUE_DISABLED</EventType><PostTime>2013-01-01T12:00:00.700+00:00</PostTime><SPID>0</SPID>"
    "<ServerName></ServerName><LoginName></LoginName><UserName></UserName><DatabaseName>AdventureWorks</DatabaseName>"
    "<SchemaName>dbo</SchemaName><ObjectName>ExpenseQueue</ObjectName><ObjectType>QUEUE</ObjectType></EVENT_INSTANCE>"
)


def test_sb_17_the_document() -> None:
    assert DOCUMENT.to_xml() == XML
    assert QueueDisabledDocument.from_xml(XML) == DOCUMENT


def test_sb_17_it_says_that_it_is_unverified() -> None:
    assert "UNVERIFIED" in (QueueDisabledDocument.__doc__ or "")


def test_sb_16_the_names_of_the_event() -> None:
    assert (TRACE_EVENT, TRACE_EVENT_CLASS, EVENT_TYPE) == ("Broker:Queue Disabled", 143, "BROKER_QUEUE_DISABLED")
    assert MESSAGE_TYPE == "http://schemas.microsoft.com/SQL/Notifications/EventNotification"
    assert CONTRACT == "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"


def test_sb_17_the_post_time_is_in_utc() -> None:
    east = AT.astimezone(timezone(timedelta(hours=2)))

    assert replace(DOCUMENT, post_time=east).to_xml() == XML


names = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=20)


@given(st.builds(QueueDisabledDocument, queue=names, post_time=st.just(AT), database_name=names, server_name=names, spid=st.integers(0, 32767)))
def test_sb_17_what_is_written_can_be_read(document: QueueDisabledDocument) -> None:
    assert QueueDisabledDocument.from_xml(document.to_xml()) == document


def test_sb_17_a_time_without_a_zone_is_utc_and_white_space_and_more_elements_do_no_harm() -> None:
    laid_out = XML.replace("><", ">\n  <").replace(".700+00:00", ".700").replace("<SPID>0</SPID>", "<SPID>51</SPID><Severity>10</Severity>")

    assert QueueDisabledDocument.from_xml(laid_out).post_time == AT
    assert QueueDisabledDocument.from_xml(laid_out).spid == 51


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        ("<EVENT_INSTANCE>", "well-formed"),
        ("", "well-formed"),
        (XML.replace("EVENT_INSTANCE", "EVENT"), "root is EVENT"),
        (XML.replace("BROKER_QUEUE_DISABLED", "QUEUE_ACTIVATION"), "QUEUE_ACTIVATION"),
        (XML.replace(">QUEUE<", ">TABLE<"), "TABLE"),
        (XML.replace("<ObjectName>ExpenseQueue</ObjectName>", ""), "ObjectName"),
        (XML.replace("2013-01-01", "yesterday"), "PostTime"),
        (XML.replace("<SPID>0", "<SPID>x"), "SPID"),
        (f'<!DOCTYPE a [<!ENTITY e "x">]>{XML}', "DTD"),
    ],
)
def test_sb_17_anything_else_is_no_such_event(document: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        QueueDisabledDocument.from_xml(document)
