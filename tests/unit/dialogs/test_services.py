"""Services, contracts and message types: what they may be, and which bodies they refuse."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_poison.dialogs.services import DEFAULT_CONTRACT, SYSTEM_MESSAGE_TYPES, Contract, InvalidBody, MessageType, SentBy, Service
from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR, ErrorDocument, is_system
from airflow_poison.rules.queue_disabling import Validation
from airflow_poison.values.errors import SettingError

SUBMIT, APPROVE, RECEIPT = "//Expenses/Submit", "//Expenses/Approve", "//Expenses/Receipt"
FORM = {"type": "object", "required": ["amount"], "properties": {"amount": {"$ref": "#/$defs/money"}}, "$defs": {"money": {"type": "number"}}}
EXPENSES = Contract(
    "//Expenses/Process",
    {SUBMIT: SentBy.INITIATOR, APPROVE: SentBy.TARGET, RECEIPT: SentBy.ANY},
    [MessageType(SUBMIT, Validation.XML), MessageType(RECEIPT, schema=FORM)],
)
SERVICE = Service("//Expenses", [EXPENSES, DEFAULT_CONTRACT])


def test_sb_35_the_names_of_the_system_message_types_are_those_of_the_sources() -> None:
    assert ERROR == "https://schemas.microsoft.com/SQL/ServiceBroker/Error"
    assert END_DIALOG == "https://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"
    assert DIALOG_TIMER == "https://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer"
    assert [*SYSTEM_MESSAGE_TYPES] == [ERROR, END_DIALOG, DIALOG_TIMER]


@pytest.mark.parametrize("name", [ERROR, END_DIALOG, DIALOG_TIMER])
def test_sb_35_q_2_a_system_message_type_is_known_by_either_print(name: str) -> None:
    assert is_system(name) == is_system(name.replace("https:", "http:")) == name


@pytest.mark.parametrize("name", [None, "", "Error", SUBMIT, ERROR.lower(), f"{ERROR} "])
def test_sb_35_all_others_are_the_applications(name: str | None) -> None:
    assert is_system(name) is None


@pytest.mark.parametrize(
    ("name", "body", "valid"),
    [
        pytest.param(ERROR, ErrorDocument(12, "no").to_xml(), True, id="SB-39 Error"),
        pytest.param(ERROR, b"<Error>", False, id="SB-39 Error that is no XML"),
        pytest.param(END_DIALOG, b"", True, id="SB-42 EndDialog"),
        pytest.param(END_DIALOG, b"bye", False, id="SB-42 EndDialog with a body"),
        pytest.param(DIALOG_TIMER, b"", True, id="SB-42 DialogTimer"),
        pytest.param(DIALOG_TIMER, b"0", False, id="SB-42 DialogTimer with a body"),
    ],
)
def test_sb_39_42_bodies_of_system_messages(name: str, body: bytes, valid: bool) -> None:  # noqa: FBT001
    assert (SYSTEM_MESSAGE_TYPES[name].check(body) is None) is valid


def test_sb_36_a_contract_limits_the_applications_message_types_by_side() -> None:
    assert EXPENSES.sent_by(SentBy.INITIATOR) == {SUBMIT, RECEIPT}
    assert EXPENSES.sent_by(SentBy.TARGET) == {APPROVE, RECEIPT}
    assert DEFAULT_CONTRACT.sent_by(SentBy.INITIATOR) == DEFAULT_CONTRACT.sent_by(SentBy.TARGET) == {"DEFAULT"}


def test_sb_36_37_system_messages_may_stand_in_a_contract_and_are_never_sent_by_an_application() -> None:
    contract = Contract("c", {"a": "ANY", ERROR: "ANY", END_DIALOG: "TARGET", DIALOG_TIMER.replace("https", "http"): "INITIATOR"})

    assert contract.sent_by(SentBy.INITIATOR) == contract.sent_by(SentBy.TARGET) == {"a"}
    assert contract.message_types[ERROR].validation is Validation.XML


@pytest.mark.parametrize(
    ("validation", "letter"),
    [("N", "N"), ("NONE", "N"), ("none", "N"), ("E", "E"), ("EMPTY", "E"), ("X", "X"), ("WELL_FORMED_XML", "X"), ("E ", "E"), (Validation.XML, "X")],
)
def test_sb_52_validation_is_said_by_letter_or_by_the_manuals_word(validation: str, letter: str) -> None:
    assert MessageType("a", validation).validation is Validation(letter)
    assert MessageType("a").validation is Validation.NONE


@pytest.mark.parametrize(
    ("message_type", "body", "reason"),
    [
        pytest.param(MessageType("a"), b"\x00", None, id="SB-52 N anything"),
        pytest.param(MessageType("a"), b"", None, id="SB-52 N nothing"),
        pytest.param(MessageType("a", "E"), b"", None, id="SB-52 E nothing"),
        pytest.param(MessageType("a", "E"), b" ", "it has 1 byte, expected none", id="SB-52 E a blank"),
        pytest.param(MessageType("a", "X"), b"<a/>", None, id="SB-52 X"),
        pytest.param(MessageType("a", "X"), "<ä>ä</ä>".encode("utf-16-le"), None, id="SB-52 X nvarchar"),
        pytest.param(MessageType("a", "X"), b"<a>", "no well-formed XML", id="SB-52 X open"),
        pytest.param(MessageType("a", "X"), b"", "no well-formed XML", id="SB-52 X nothing"),
        pytest.param(MessageType("a", "X"), b"<b:a/>", "unbound prefix", id="SB-52 X unknown prefix"),
        pytest.param(MessageType("a", "X"), b"<a>&x;</a>", "undefined entity", id="SB-52 X unknown entity"),
        pytest.param(MessageType("a", "X"), b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "it has a DTD", id="SB-52 X entities that grow"),
        pytest.param(MessageType("a", "X"), b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "it has a DTD", id="SB-52 X a DTD from elsewhere"),
        pytest.param(MessageType("a", "X"), b"<a>" * 100_000 + b"</a>" * 100_000, None, id="SB-52 X deep"),
        pytest.param(MessageType("a", schema=FORM), b'{"amount": 1.5}', None, id="schema"),
        pytest.param(MessageType("a", schema=FORM), '{"amount": 1.5}'.encode("utf-16"), None, id="schema UTF-16"),
        pytest.param(MessageType("a", schema=FORM), b"{}", "'amount' is a required property", id="schema lacks"),
        pytest.param(MessageType("a", schema=FORM), b'{"amount": "1"}', "at $.amount", id="schema other type, by reference"),
        pytest.param(MessageType("a", schema=FORM), b"", "no JSON", id="schema nothing"),
        pytest.param(MessageType("a", schema={}), b"NaN", "JSON has no NaN", id="schema NaN"),
        pytest.param(MessageType("a", schema={}), b"\xff", "no JSON", id="schema no text"),
        pytest.param(MessageType("a", schema={}), b"[" * 100_000, "no JSON", id="schema endless depth"),
        pytest.param(MessageType("a", schema={"multipleOf": 0.1}), b"1e999", None, id="schema a number beyond all floats"),
        pytest.param(MessageType("a", schema={"$ref": "#"}), b"1", "no JSON", id="schema that never ends"),
    ],
)
def test_bodies_are_validated(message_type: MessageType, body: bytes, reason: str | None) -> None:
    found = message_type.check(body)

    assert (found is None) is (reason is None)
    if found and reason:
        assert reason in found.reason
        assert found == InvalidBody("a", found.reason, number=9615, number_here=9616)


def test_sb_57_a_long_reason_is_cut() -> None:
    found = MessageType("a", schema={"type": "string"}).check(json.dumps(list(range(10_000))).encode())

    assert found is not None
    assert len(found.reason) == 300


@given(st.binary() | st.text().map(str.encode), st.sampled_from([MessageType("a", "X"), MessageType("a", schema=FORM)]))
def test_sb_52_any_body_can_be_checked(body: bytes, message_type: MessageType) -> None:
    message_type.check(body)


@pytest.mark.parametrize("schema", [{"type": "nope"}, {"pattern": "("}, {"a": float("nan")}, {"a": b""}, True, [], {"$schema": "urn:mine"}])
def test_a_schema_that_is_none_is_refused(schema: Any) -> None:
    with pytest.raises(SettingError, match=r"schema=|\$schema="):
        MessageType("a", schema=schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/form.json"},
        {"$ref": "form.json"},
        {"items": {"$ref": "#/$defs/missing"}},
        {"anyOf": [{"$dynamicRef": "other#a"}]},
        {"$defs": {"a": {"$id": "https://example.com/a"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": {"$ref": "#/definitions/missing"}},
    ],
)
def test_a_schema_reads_nothing_from_elsewhere(schema: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"\$ref=|\$id="):
        MessageType("a", schema=schema)


def test_a_schema_may_be_of_an_older_draft_and_may_name_a_property_ref() -> None:
    draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"$ref": "#/definitions/n"}], "definitions": {"n": {"type": "null"}}}

    assert MessageType("a", schema=draft_7).check(b"[null]") is None
    assert MessageType("a", schema=draft_7).check(b"[1]") is not None
    assert MessageType("a", schema={"properties": {"$ref": {"type": "string"}}}).check(b'{"$ref": 1}') is not None


def test_a_schema_is_copied() -> None:
    schema = {"type": "null"}
    message_type = MessageType("a", schema=schema)
    schema["type"] = "string"

    assert message_type.check(b"null") is None


@pytest.mark.parametrize("name", ["a" * 128, "\U0001f600" * 64, "ä", "https://example.com/a b", "[x]"])
def test_names_have_up_to_128_characters_as_nvarchar_counts_them(name: str) -> None:
    assert MessageType(name).name == Contract(name, {"a": "ANY"}).name == Service(name, [DEFAULT_CONTRACT]).name == name


@pytest.mark.parametrize("name", ["", " ", "a" * 129, "\U0001f600" * 65, "a\n", "a\x00", "\ud800", None, 7])
def test_other_names_are_refused(name: Any) -> None:
    for make in (
        MessageType,
        lambda name: Contract(name, {"a": "ANY"}),
        lambda name: Service(name, [DEFAULT_CONTRACT]),
        lambda name: Contract("c", {name: "ANY"}),
    ):
        with pytest.raises(SettingError, match="1 to 128 characters"):
            make(name)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        pytest.param(lambda: MessageType("a", "Y"), "validation='Y'", id="SB-52 another letter"),
        pytest.param(lambda: MessageType("a", "VALID_XML"), "validation='VALID_XML'", id="SB-52 XML schemas"),
        pytest.param(lambda: MessageType("a", "X", {}), "validation='X'", id="XML with a schema"),
        pytest.param(lambda: MessageType(ERROR), "validation='N'", id="SB-35 Error is XML"),
        pytest.param(lambda: MessageType(END_DIALOG.replace("https", "http"), "X"), "validation='X'", id="SB-35 EndDialog is empty"),
        pytest.param(lambda: MessageType("DEFAULT", "X"), "validation='X'", id="DEFAULT is not validated"),
        pytest.param(lambda: MessageType("DEFAULT", schema={}), "DEFAULT", id="DEFAULT has no schema"),
        pytest.param(lambda: Contract("c", {}), "senders={}", id="SB-36 nothing to send"),
        pytest.param(lambda: Contract("c", {"a": "TARGET"}), "INITIATOR", id="SB-36 the initiator sends nothing"),
        pytest.param(lambda: Contract("c", {ERROR: "ANY"}), "INITIATOR", id="SB-36 system messages only"),
        pytest.param(lambda: Contract("c", {"a": "BOTH"}), "sent by='BOTH'", id="SB-36 nobody"),
        pytest.param(lambda: Contract("c", ["a"]), "senders=", id="SB-36 a list"),  # type: ignore[arg-type]  # that is the point
        pytest.param(lambda: Contract("c", {"a": "ANY"}, [MessageType("b")]), "message type='b'", id="SB-36 a type that it does not name"),
        pytest.param(lambda: Contract("c", {"a": "ANY"}, [MessageType("a")] * 2), "no other message type", id="a type twice"),
        pytest.param(lambda: Contract("c", {"a": "ANY"}, ["a"]), "a MessageType", id="a name for a type"),  # type: ignore[list-item]  # that is the point
        pytest.param(lambda: Contract("DEFAULT", {"a": "ANY"}), "contract='DEFAULT'", id="another contract DEFAULT"),
        pytest.param(lambda: Service("s", []), "at least one contract", id="no contract"),
        pytest.param(lambda: Service("s", [EXPENSES, EXPENSES]), "no other contract", id="a contract twice"),
        pytest.param(lambda: Service.from_dict({"name": "s", "queue": "q", "contracts": {}}), "queue='q'", id="stored: an unknown word"),
        pytest.param(lambda: Service.from_dict({"name": "s", "contracts": ["c"]}), "contracts=", id="stored: a list"),
        pytest.param(lambda: Service.from_dict({"name": "s", "contracts": {"c": 1}}), "contract=1", id="stored: a number"),
        pytest.param(lambda: Service.from_dict({}), "service=''", id="stored: nothing"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, named: str) -> None:
    with pytest.raises(SettingError) as refused:
        make()
    assert named in str(refused.value)


def test_sb_36_types_that_are_only_named_are_not_validated() -> None:
    assert {name: kind.validation for name, kind in EXPENSES.message_types.items()} == {
        SUBMIT: Validation.XML,
        APPROVE: Validation.NONE,
        RECEIPT: Validation.NONE,
    }
    assert EXPENSES.message_types[RECEIPT].schema == FORM


def test_capitals_count_in_names() -> None:
    contract = Contract("c", {"a": "INITIATOR", "A": "TARGET"})

    assert contract.sent_by(SentBy.INITIATOR) == {"a"}


def test_services_go_through_json_and_pickle() -> None:
    assert Service.from_dict(json.loads(json.dumps(SERVICE.to_dict()))) == SERVICE
    assert pickle.loads(pickle.dumps(SERVICE)) == SERVICE
    assert SERVICE.to_dict()["name"] == "//Expenses"
    assert Service("//Expenses", [EXPENSES]) != SERVICE
    assert Contract(EXPENSES.name, EXPENSES.senders) != EXPENSES  # the validations are part of it


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20).filter(lambda name: name != "DEFAULT")
TYPES = st.builds(
    lambda name, kind: MessageType(name, **kind), NAMES, st.sampled_from([{}, {"validation": "E"}, {"validation": "X"}, {"schema": FORM}])
)


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    types = draw(st.lists(TYPES, min_size=1, max_size=4, unique_by=lambda kind: kind.name))
    senders: dict[str, SentBy | str] = {kind.name: draw(st.sampled_from(SentBy)) for kind in types}
    senders[types[0].name] = SentBy.INITIATOR
    return Contract(draw(NAMES), senders, draw(st.lists(st.sampled_from(types), unique_by=lambda kind: kind.name)))


@given(NAMES, st.lists(contracts(), min_size=1, max_size=3, unique_by=lambda contract: contract.name))
def test_any_service_goes_through_json(name: str, agreed: list[Contract]) -> None:
    service = Service(name, agreed)

    assert Service.from_dict(json.loads(json.dumps(service.to_dict()))) == service
