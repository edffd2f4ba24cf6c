"""Services, their contracts and message types: which messages each side may send in a conversation (spec SB-35 to SB-37, SB-52)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeVar

from airflow_poison.dialogs import system_messages
from airflow_poison.dialogs.system_messages import DIALOG_TIMER, END_DIALOG, ERROR, BrokerError, is_system
from airflow_poison.rules import settings
from airflow_poison.rules.queue_disabling import CONTRACT, MESSAGE_TYPE, Validation
from airflow_poison.values import json_text
from airflow_poison.values.errors import SettingError
from airflow_poison.values.json_text import exact, words
from airflow_poison.values.texts import counted

DEFAULT = "DEFAULT"
"""The name of SQL Server's own message type, and of its contract."""

LONGEST_NAME = 128
_MANUAL_WORDS = {"EMPTY": Validation.EMPTY, "NONE": Validation.NONE, "WELL_FORMED_XML": Validation.XML}
_GIVEN = {ERROR: Validation.XML, END_DIALOG: Validation.EMPTY, DIALOG_TIMER: Validation.EMPTY, DEFAULT: Validation.NONE}


Named = TypeVar("Named", "MessageType", "Contract")


@dataclass(frozen=True, slots=True)
class InvalidBody:
    """Why a body is none of its message type.

    :param number: of the broker's error for its sender, and ``number_here`` the one for the receiving side (spec SB-57).
    """

    message_type: str
    reason: str
    number: int = BrokerError.SENT_INVALID.value
    number_here: int = BrokerError.RECEIVED_INVALID.value


@dataclass(frozen=True, slots=True)
class MessageType:
    """A message type: CREATE MESSAGE TYPE. Raises SettingError for what cannot be one.

    :param name: 1 to 128 characters; capitals count.
    :param validation: of the body (spec SB-52): ``N`` (NONE), ``E`` (EMPTY) or ``X`` (WELL_FORMED_XML), as a letter or as the manual's word.
    :param schema: beyond Service Broker, with validation ``N``: the body must be JSON that fits this JSON Schema.
    """

    name: str
    validation: Validation | str = Validation.NONE
    schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        name, validation = _name("message type", self.name), _validation(self.validation)
        given = _GIVEN.get(is_system(name) or name, validation)
        if validation is not given or (name in _GIVEN and self.schema is not None):
            raise SettingError("validation", str(validation), f"{given.value}, without a schema: {name} is SQL Server's own message type")
        if self.schema is not None and validation is not Validation.NONE:
            raise SettingError("validation", str(validation), f"{Validation.NONE.value} together with a schema")
        schema = None if self.schema is None else checked_schema(self.schema)
        settings.put(self, name=name, validation=validation, schema=schema)

    def check(self, body: bytes | None) -> InvalidBody | None:
        """Return why a body is none of this type; None: it is one."""
        body = body or b""
        reason: str | None = None
        if self.validation is Validation.EMPTY:
            reason = f"it has {counted(len(body), 'byte')}, expected none" if body else None
        elif self.validation is Validation.XML:
            try:
                system_messages.read_xml(body)
            except system_messages.NotWellFormedError as error:
                reason = f"it is no well-formed XML: {error}"
        elif self.schema is not None:
            reason = misfit(self.schema, body)
        return None if reason is None else InvalidBody(self.name, reason)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, without the name."""
        return {"validation": str(self.validation)} | ({} if self.schema is None else {"schema": self.schema})

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> Self:
        """Return the message type of ``to_dict()``. Raises SettingError."""
        return cls(name, **_known("message type", values, {"validation", "schema"}))


class SentBy(StrEnum):
    """Who may send a message type."""

    INITIATOR = "INITIATOR"
    TARGET = "TARGET"
    ANY = "ANY"


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract: CREATE CONTRACT. Raises SettingError for what cannot be one.

    :param name: 1 to 128 characters; capitals count.
    :param senders: the application's message types by name, with who may send each; the initiator at least one. The system message types
        can be received whether or not they are here, and they are not sent as messages (spec SB-36).
    :param types: of these, the ones whose bodies are validated; the others have validation ``N``.
    :ivar message_types: all message types of the contract by name.
    """

    name: str
    senders: Mapping[str, SentBy | str]
    types: Iterable[MessageType] = field(default=(), repr=False, compare=False)
    message_types: Mapping[str, MessageType] = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.senders, Mapping):
            raise SettingError("senders", self.senders, "a mapping of message types to INITIATOR, TARGET or ANY")
        senders = {_name("message type", name): settings.choice("sent by", _upper(who), SentBy) for name, who in self.senders.items()}
        types = _by_name("message type", self.types, MessageType)
        for name in types.keys() - senders.keys():
            raise SettingError("message type", name, f"one that the contract names: {', '.join(senders) or 'it names none'}")
        usual = {name: MessageType(name, _GIVEN.get(is_system(name) or name, Validation.NONE)) for name in senders if name not in types}
        message_types = {name: types.get(name) or usual[name] for name in senders}
        settings.put(self, name=_name("contract", self.name), senders=senders, types=tuple(types.values()), message_types=message_types)
        if not self.sent_by(SentBy.INITIATOR):
            raise SettingError("senders", senders, "at least one application message type that the INITIATOR, or ANY, sends")
        if self.name == DEFAULT and senders != {DEFAULT: SentBy.ANY}:
            raise SettingError("contract", DEFAULT, "another name: this is SQL Server's own contract")

    def sent_by(self, side: SentBy) -> frozenset[str]:
        """Return the message types that a side may send.

        :param side: INITIATOR or TARGET.
        """
        return frozenset(name for name, who in self.senders.items() if who in {side, SentBy.ANY} and not is_system(name))

    def to_dict(self) -> dict[str, object]:
        """Return JSON values, without the name."""
        validated = {message_type.name: message_type.to_dict() for message_type in self.types}
        return {"senders": {name: str(who) for name, who in self.senders.items()}, "types": validated}

    @classmethod
    def from_dict(cls, name: str, values: Mapping[str, Any]) -> Self:
        """Return the contract of ``to_dict()``. Raises SettingError."""
        known = _known("contract", values, {"senders", "types"})
        types = _mapping("types", known.get("types", {}))
        return cls(name, known.get("senders", {}), [MessageType.from_dict(kind, definition) for kind, definition in types.items()])


@dataclass(frozen=True, slots=True, init=False)
class Service:
    """A service: CREATE SERVICE. Raises SettingError for what cannot be one.

    :param name: 1 to 128 characters; capitals count.
    :param contracts: those that its conversations follow; given as contracts, kept by name.
    """

    name: str
    contracts: Mapping[str, Contract]

    def __init__(self, name: str, contracts: Iterable[Contract]) -> None:
        settings.put(self, name=_name("service", name), contracts=_by_name("contract", contracts, Contract))
        if not self.contracts:
            raise SettingError("contracts", [], "at least one contract; SQL Server's own is DEFAULT_CONTRACT")

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return {"name": self.name, "contracts": {name: contract.to_dict() for name, contract in self.contracts.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the service of ``to_dict()``. Raises SettingError."""
        known = _known("service", values, {"name", "contracts"})
        contracts = _mapping("contracts", known.get("contracts", {}))
        return cls(known.get("name", ""), [Contract.from_dict(name, definition) for name, definition in contracts.items()])


# Parts ----------------------------------------------------------------------------------------------------------------


def _name(kind: str, name: object) -> str:
    """Return a name as SQL Server allows it: counted in UTF-16, as nvarchar is. Raises SettingError."""
    if not isinstance(name, str) or not name.isprintable() or not name.strip() or len(name.encode("utf-16-le")) > 2 * LONGEST_NAME:
        raise SettingError(kind, name, f"a name of 1 to {LONGEST_NAME} characters that can be printed")
    return name


def _validation(value: object) -> Validation:
    word = _upper(value)
    return _MANUAL_WORDS[word] if isinstance(word, str) and word in _MANUAL_WORDS else settings.choice("validation", word, Validation)


def _upper(value: object) -> object:
    return value.strip().upper() if isinstance(value, str) else value


def _by_name(kind: str, given: Iterable[Named], expected: type[Named]) -> dict[str, Named]:
    found: dict[str, Named] = {}
    for each in given:
        if not isinstance(each, expected):
            raise SettingError(kind, each, f"a {expected.__name__}")
        if each.name in found:
            raise SettingError(kind, each.name, f"a name that no other {kind} beside it has")
        found[each.name] = each
    return found


def _known(kind: str, values: object, names: set[str]) -> dict[str, Any]:
    """Return stored values, all of whose names are known. Raises SettingError."""
    known = dict(_mapping(kind, values))
    for name in known.keys() - names:
        raise SettingError(name, known[name], f"of a stored {kind}: {', '.join(sorted(names))}")
    return known


def _mapping(kind: str, values: object) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise SettingError(kind, values, "a mapping of names")
    return values


SYSTEM_MESSAGE_TYPES = {name: MessageType(name, _GIVEN[name]) for name in (ERROR, END_DIALOG, DIALOG_TIMER)}
"""Available to every service, whatever its contracts say (spec SB-35, SB-36)."""
DEFAULT_CONTRACT = Contract(DEFAULT, {DEFAULT: SentBy.ANY})
"""SQL Server's own: both sides send messages of type DEFAULT, whose bodies are not validated."""
EVENT_NOTIFIER = "http://schemas.microsoft.com/SQL/Notifications/EventNotificationService"
"""The service that begins the dialogs of event notifications; no queue has it."""
EVENT_NOTIFICATION = Contract(CONTRACT, {MESSAGE_TYPE: SentBy.INITIATOR}, [MessageType(MESSAGE_TYPE, Validation.XML)])
"""SQL Server's own: what a service needs to get event notifications (spec SB-16)."""


# JSON Schema: beyond Service Broker, whose schemas are XML -------------------------------------------------------------


_REFERENCES = ("$ref", "$dynamicRef")
_LONGEST_REASON = 300


def checked_schema(schema: object) -> dict[str, Any]:
    """Return a schema as plain JSON values. Raises SettingError for one that is none, or that needs another document.

    It is read as Draft 2020-12, or as the draft that its ``$schema`` names. ``format`` says something to people and refuses nothing.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    if not isinstance(schema, dict):
        raise SettingError("schema", schema, "a JSON Schema: a dict")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingError("schema", schema, f"JSON values only ({error})") from error
    if "$schema" in plain and validator_for(plain, default=None) is None:
        raise SettingError("$schema", plain["$schema"], "a draft of JSON Schema, for example 'https://json-schema.org/draft/2020-12/schema'")
    try:
        validator_for(plain, default=Draft202012Validator).check_schema(plain)
    except SchemaError as error:
        raise SettingError("schema", schema, f"a valid JSON Schema ({error.message})") from error
    _check_references(plain)
    return plain


def misfit(schema: Mapping[str, Any], body: bytes) -> str | None:
    """Return why a body is no JSON that fits a schema; None: it fits."""
    from jsonschema.exceptions import best_match

    try:
        value = json_text.values(body)
        error = best_match(_validator(schema).iter_errors(value))
    except Exception as problem:  # noqa: BLE001  (no JSON, or whatever jsonschema raises for a value)
        return f"it is no JSON that can be checked: {problem}"[:_LONGEST_REASON]
    return None if error is None else f"at {error.json_path}: {words(error)}"[:_LONGEST_REASON]


def _validator(schema: Mapping[str, Any]) -> Any:
    """Return a validator that reads no other document: nothing is fetched."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    kind = validator_for(schema, default=Draft202012Validator)
    numbers = json_text.values(json_text.written(schema))
    return exact(kind)({name: value for name, value in numbers.items() if name != "$schema"}, registry=Registry())


def _check_references(schema: dict[str, Any]) -> None:
    """Raise SettingError for a reference that leads out of the schema, or nowhere in it."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, specification_with

    kind = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
    resolver = Registry().resolver_with_root(kind.create_resource(schema))
    for place in _places(schema):
        if place is not schema and isinstance(place.get("$id"), str):
            raise SettingError("$id", place["$id"], "only at the top of a schema")
        for reference in (place[word] for word in _REFERENCES if isinstance(place.get(word), str)):
            try:
                inside = reference.startswith("#") and resolver.lookup(reference)
            except Unresolvable:
                inside = False
            if not inside:
                raise SettingError("$ref", reference, "a place in the same schema, for example '#/$defs/item'")


def _places(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        yield from _places(part)
