"""The document of an Error message, read and written."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.dialogs.system_messages import NAMESPACES, BrokerError, ErrorDocument
from airflow_poison.values.errors import ErrorDocumentError, SettingError

SOURCE = """<?xml version="1.0"?>
<Error xmlns="https://schemas.microsoft.com/SQL/ServiceBroker">
  <Code>12</Code>
  <Description>
    Unknown cost center "127-1000". Please check the cost center list
    and resubmit the report.
  </Description>
</Error>
"""
TEXT = 'Unknown cost center "127-1000". Please check the cost center list and resubmit the report.'
BARE = SOURCE.partition("\n")[2]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(SOURCE.encode(), id="SB-39 the example of the sources"),
        pytest.param(SOURCE.replace("Description", "Message").encode(), id="SB-39 Q-1 Message"),
        pytest.param(SOURCE.replace("https:", "http:").encode(), id="SB-39 Q-2 http"),
        pytest.param(SOURCE.replace("https:", "http:").replace("Description", "Message").encode(), id="SB-39 both"),
        pytest.param(SOURCE.encode("utf-8-sig"), id="UTF-8 with a mark"),
        pytest.param(BARE.encode("utf-16"), id="UTF-16 with a mark"),
        pytest.param(BARE.encode("utf-16-le"), id="nvarchar"),
        pytest.param(BARE.encode("utf-16-be"), id="the other byte order"),
        pytest.param(SOURCE.replace("<Code>12<", "<Code>\r\n\t12 <").encode(), id="SB-40 white space around the code"),
        pytest.param(re.sub("(</?)(?=[ECD])", r"\1b:", SOURCE).replace("xmlns=", "xmlns:b=").encode(), id="with a prefix"),
    ],
)
def test_sb_39_40_57_e11_a_document_is_read(document: bytes) -> None:
    read = ErrorDocument.from_xml(document)

    assert read.code == 12
    assert read.same_text(ErrorDocument(0, TEXT))
    assert not read.is_broker_error
    assert read.broker_error is None


def test_sb_40_the_white_space_inside_is_kept_and_around_it_is_not() -> None:
    read = ErrorDocument.from_xml(SOURCE.encode()).description

    assert read.startswith('Unknown cost center "127-1000"')
    assert "list\n    and resubmit" in read
    assert read.endswith("report.")
    assert ErrorDocument.from_xml(SOURCE.replace("Unknown", "\u00a0Unknown").encode()).description.startswith(
        "\u00a0Unknown"
    )  # no white space of XML


def test_sb_40_other_words_are_another_text() -> None:
    assert not ErrorDocument(1, "a b").same_text(ErrorDocument(1, "a c"))
    assert not ErrorDocument(1, "a b").same_text(ErrorDocument(1, "ab"))
    assert ErrorDocument(1, " a\r\n\tb").same_text(ErrorDocument(2, "a b"))


def test_sb_e11_57_the_broker_says_that_the_lifetime_is_exceeded() -> None:
    read = ErrorDocument.from_xml(SOURCE.replace(">12<", ">-8489<").encode())

    assert read.is_broker_error
    assert read.broker_error is BrokerError.LIFETIME


@pytest.mark.parametrize(
    ("code", "is_broker", "error"),
    [(-8490, True, BrokerError.SERVICE_UNKNOWN), (-1, True, None), (0, False, None), (8489, False, None), (127, False, None)],
)
def test_sb_57_negative_codes_are_the_brokers(code: int, is_broker: bool, error: BrokerError | None) -> None:  # noqa: FBT001
    assert (ErrorDocument(code).is_broker_error, ErrorDocument(code).broker_error) == (is_broker, error)


def test_sb_57_the_numbers_of_the_broker() -> None:
    assert {error.name: error.value for error in BrokerError} == {
        "ENDPOINT_GONE": 8462,
        "SERVICE_DROPPED": 8470,
        "CONTRACT_DROPPED": 8487,
        "LIFETIME": 8489,
        "SERVICE_UNKNOWN": 8490,
        "NO_PERMISSION": 8494,
        "SENT_INVALID": 9615,
        "RECEIVED_INVALID": 9616,
        "RESTORED": 9719,
        "REMOTE_RESTORED": 9720,
    }


@pytest.mark.parametrize("error", BrokerError)
def test_sb_57_a_broker_makes_a_document_of_each_of_its_errors(error: BrokerError) -> None:
    document = error.document("Service: //Expenses.")

    assert document == ErrorDocument(-error.value, f"{error.text} Service: //Expenses.")
    assert ErrorDocument.from_xml(document.to_xml()).broker_error is error
    assert error.document().description == error.text


@pytest.mark.parametrize(
    ("document", "why"),
    [
        pytest.param(SOURCE.replace("Error", "Fault"), "root is 'Fault'", id="root Fault"),
        pytest.param(SOURCE.replace("<Code>12</Code>", ""), "0 elements Code", id="no Code"),
        pytest.param(SOURCE.replace(">12<", ">abc<"), "Code is 'abc'", id="Code abc"),
        pytest.param(SOURCE.replace("</Error>", ""), "not well-formed", id="not well-formed"),
        pytest.param(SOURCE.replace(">12<", "><"), "Code is ''", id="Code empty"),
        pytest.param(SOURCE.replace(">12<", ">1 2<"), "Code is '1 2'", id="Code of two numbers"),
        pytest.param(SOURCE.replace(">12<", ">1_2<"), "Code is '1_2'", id="Code as Python writes it"),
        pytest.param(SOURCE.replace(">12<", ">\u0661<"), "Code is '\u0661'", id="Code in other digits"),
        pytest.param(SOURCE.replace(">12<", ">2147483648<"), "Code is '2147483648'", id="Code above int"),
        pytest.param(SOURCE.replace(">12<", f">{'9' * 5000}<"), "Code is '999", id="Code endless"),
        pytest.param(SOURCE.replace("<Code>12</Code>", "<Code>1</Code><Code>2</Code>"), "2 elements Code", id="two codes"),
        pytest.param(SOURCE.replace("<Code>12</Code>", "<a><Code>1</Code></a>"), "0 elements Code", id="Code further down"),
        pytest.param(SOURCE.replace("<Code>", '<Code xmlns="urn:other">'), "0 elements Code", id="Code of another namespace"),
        pytest.param(SOURCE.replace("microsoft", "example"), "namespace", id="another namespace"),
        pytest.param(SOURCE.replace(' xmlns="https://schemas.microsoft.com/SQL/ServiceBroker"', ""), "namespace ''", id="no namespace"),
        pytest.param("", "not well-formed", id="nothing"),
        pytest.param(
            SOURCE.replace("<Error", '<!DOCTYPE Error [<!ENTITY a "boom">]>\n<Error').replace("Unknown", "&a;"), "DTD", id="entities that grow"
        ),
        pytest.param(SOURCE.replace("<Error", '<!DOCTYPE Error SYSTEM "file:///etc/passwd">\n<Error'), "DTD", id="a DTD from elsewhere"),
    ],
)
def test_sb_e11_what_is_no_error_message_is_rejected(document: str, why: str) -> None:
    with pytest.raises(ErrorDocumentError, match=re.escape(why)):
        ErrorDocument.from_xml(document.encode())


def test_sb_39_a_document_without_a_text_has_an_empty_one_and_description_goes_before_message() -> None:
    start, end = f'<Error xmlns="{NAMESPACES[0]}"><Code>1</Code>', "</Error>"

    assert ErrorDocument.from_xml(f"{start}{end}".encode()) == ErrorDocument(1, "")
    assert ErrorDocument.from_xml(f"{start}<Message>m</Message><Description>d</Description>{end}".encode()).description == "d"
    assert ErrorDocument.from_xml(f"{start}<Message>a <b>b</b> c</Message>{end}".encode()).description == "a b c"


def test_sb_39_what_is_written_has_the_namespace_of_the_sources_and_the_word_of_their_example() -> None:
    expected = b'<?xml version="1.0"?><Error xmlns="%s"><Code>500</Code><Description>1 &lt; 2 &amp; 3</Description></Error>'

    assert ErrorDocument(500, "1 < 2 & 3").to_xml() == expected % b"https://schemas.microsoft.com/SQL/ServiceBroker"
    assert ErrorDocument(500, "1 < 2 & 3").to_xml(NAMESPACES[1]) == expected % b"http://schemas.microsoft.com/SQL/ServiceBroker"
    with pytest.raises(SettingError, match="urn:mine"):
        ErrorDocument(1).to_xml("urn:mine")


def test_what_xml_cannot_hold_is_replaced() -> None:
    assert ErrorDocument.from_xml(ErrorDocument(1, "a\x00b\x1b[0m\ud800\ufffe").to_xml()).description == "a\ufffdb\ufffd[0m\ufffd\ufffd"


@given(st.integers(-(2**31), 2**31 - 1), st.text(st.characters(exclude_categories=["Cs", "Cc"])) | st.text(" \t\r\na<>&'\""))
def test_sb_39_40_what_is_written_is_read(code: int, text: str) -> None:
    text = re.sub("[\ufffe\uffff]", "", text).strip(" \t\r\n")

    for namespace in NAMESPACES:
        assert ErrorDocument.from_xml(ErrorDocument(code, text).to_xml(namespace)) == ErrorDocument(code, text)


ENCODINGS = [SOURCE.replace('"1.0"', f'"1.0" encoding="{name}"').encode() for name in ("cp037", "utf-7", "utf-32", "rot13", "undefined", "none")]


@given(st.binary() | st.text().map(str.encode) | st.sampled_from(ENCODINGS))
def test_sb_e11_any_bytes_are_read_or_rejected(document: bytes) -> None:
    with contextlib.suppress(ErrorDocumentError):
        ErrorDocument.from_xml(document)
