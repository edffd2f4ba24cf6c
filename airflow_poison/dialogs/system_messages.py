"""System messages: what brokers themselves send in dialogs, and the document that an Error message is (spec SB-35, SB-38 to SB-40, SB-57)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, Self
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from airflow_poison.values.errors import ErrorDocumentError, SettingError

NAMESPACE = "https://schemas.microsoft.com/SQL/ServiceBroker"
"""As the sources print it; the engine writes ``http`` (spec section 10, Q-2)."""
NAMESPACES = (NAMESPACE, NAMESPACE.replace("https:", "http:", 1))

ERROR = f"{NAMESPACE}/Error"
END_DIALOG = f"{NAMESPACE}/EndDialog"
DIALOG_TIMER = f"{NAMESPACE}/DialogTimer"
BOTH_ENDED = "poison.both-ended"
"""From broker to broker: the partner of the side that ended a dialog first has ended it, too. It changes that side's endpoint and is in no queue."""
_SYSTEM_NAMES = {name.replace(NAMESPACE, printed, 1): name for name in (ERROR, END_DIALOG, DIALOG_TIMER) for printed in NAMESPACES}
_ROOT, _CODE = "Error", "Code"
_TEXTS = ("Description", "Message")  # the example's word, which is written, and the prose's (spec section 10, Q-1)
_BLANKS = " \t\r\n"  # what XML calls white space
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_LEAST, _MOST = -(2**31), 2**31 - 1
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def is_system(message_type: str | None) -> str | None:
    """Return the name of a system message type as the sources print it, also for ``http``; None for any other type (spec SB-35)."""
    return None if message_type is None else _SYSTEM_NAMES.get(message_type)


class BrokerError(Enum):
    """What a broker itself reports in an Error message; the value is the engine's error number, the code its negative (spec SB-57).

    Where both sides get an error, the engine has two numbers for one thing: 9615 and 9719 for the side whose message is invalid, or whose database
    was restored; 9616 and 9720 for its partner.

    :ivar text: what the message says.
    """

    _value_: int
    text: str

    ENDPOINT_GONE = 8462, "The remote conversation endpoint is gone, or can exchange no more messages."
    SERVICE_DROPPED = 8470, "The remote service was dropped."
    CONTRACT_DROPPED = 8487, "The remote contract was dropped."
    LIFETIME = 8489, "The dialog has exceeded its lifetime."
    SERVICE_UNKNOWN = 8490, "The remote service does not exist."
    NO_PERMISSION = 8494, "There is no permission on the service."
    SENT_INVALID = 9615, "The body of a message that was sent has failed the validation of its message type at the remote service."
    RECEIVED_INVALID = 9616, "The body of a message that has arrived has failed the validation of its message type."
    RESTORED = 9719, "The database of this conversation endpoint was attached or restored."
    REMOTE_RESTORED = 9720, "The database of the remote conversation endpoint was attached or restored."

    def __new__(cls, number: int, text: str = "") -> Self:
        """Make a member, which is found by its number alone."""
        error = object.__new__(cls)
        error._value_, error.text = number, text
        return error

    def document(self, details: str = "") -> ErrorDocument:
        """Return the document of the broker's Error message.

        :param details: what is known besides, for example the name of the service.
        """
        return ErrorDocument(-self.value, f"{self.text} {details}".rstrip())


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    """What an Error message says.

    :param code: positive: the application's own (spec SB-54); negative: the broker's, minus the number of an error of the engine.
    :param description: for people.
    """

    code: int
    description: str = ""

    @property
    def is_broker_error(self) -> bool:
        """Whether a broker has made it, not an application (spec SB-57)."""
        return self.code < 0

    @property
    def broker_error(self) -> BrokerError | None:
        """What the broker reports; None for an application's error, and for a number that this package does not know."""
        return next((error for error in BrokerError if error.value == -self.code), None)

    def same_text(self, other: ErrorDocument) -> bool:
        """Whether two descriptions are equal but for white space: documents are laid out anew for readers (spec SB-40)."""
        return _collapsed(self.description) == _collapsed(other.description)

    def to_xml(self, namespace: str = NAMESPACE) -> bytes:
        """Return the document, UTF-8. Characters that XML cannot hold are replaced by U+FFFD. Raises SettingError for another namespace.

        :param namespace: one of ``NAMESPACES``.
        """
        if namespace not in NAMESPACES:
            raise SettingError("namespace", namespace, " or ".join(NAMESPACES))
        text = escape(_NOT_IN_XML.sub("\ufffd", self.description), {"\r": "&#13;"})
        inner = f"<{_CODE}>{self.code}</{_CODE}><{_TEXTS[0]}>{text}</{_TEXTS[0]}>"
        return f'<?xml version="1.0"?><{_ROOT} xmlns={quoteattr(namespace)}>{inner}</{_ROOT}>'.encode()

    @classmethod
    def from_xml(cls, document: bytes) -> Self:
        """Return what a document says: in either namespace, with either word for the text, the white space around code and text taken off.

        Raises ErrorDocumentError for anything that is no Error message (spec SB-E11).
        """
        namespace, root = _root(document)
        codes = [child for child in root if child.tag == f"{namespace}}}{_CODE}"]
        if len(codes) != 1:
            raise _refused(f"it has {len(codes)} elements {_CODE}, expected 1")
        texts = (child for word in _TEXTS for child in root if child.tag == f"{namespace}}}{word}")
        return cls(_number(_text(codes[0])), next(map(_text, texts), ""))


def error_of(body: bytes) -> ErrorDocument:
    """Return what the body of an Error message says; code 0 for what is no such document."""
    try:
        return ErrorDocument.from_xml(body)
    except ErrorDocumentError as error:
        return ErrorDocument(0, str(error))


def _root(document: bytes) -> tuple[str, Element]:
    builder = TreeBuilder()
    try:
        read_xml(document, builder)
    except NotWellFormedError as error:
        raise _refused(f"it is not well-formed XML: {error}") from error
    root = builder.close()
    namespace, _, name = str(root.tag).rpartition("}")
    if namespace not in NAMESPACES or name != _ROOT:
        raise _refused(f"its root is {name!r} in namespace {namespace!r}, expected {_ROOT!r} in {NAMESPACE!r}")
    return namespace, root


def _number(text: str) -> int:
    number = int(text) if _NUMBER.fullmatch(text) else None
    if number is None or not _LEAST <= number <= _MOST:
        raise _refused(f"its {_CODE} is {text[:40]!r}, expected a whole number from {_LEAST} to {_MOST}")
    return number


def _text(element: Element) -> str:
    return "".join(element.itertext()).strip(_BLANKS)


def _collapsed(text: str) -> str:
    return re.sub(f"[{_BLANKS}]+", " ", text).strip(_BLANKS)


def _refused(why: str) -> ErrorDocumentError:
    return ErrorDocumentError(f"The body is no Error message of Service Broker: {why}.")


# XML without a DTD: no entity is read from elsewhere, and none grows when it is expanded -------------------------------


class NotWellFormedError(ValueError):
    """Bytes are no well-formed XML, or XML with a DTD."""


def read_xml(document: bytes, builder: TreeBuilder | None = None) -> None:
    """Read a document in UTF-8, UTF-16 (with or without a mark, as SQL Server keeps nvarchar) or the encoding that it declares.

    :param builder: gets elements and text; names are ``namespace}local``. None: the document is only checked.
    Raises NotWellFormedError.
    """
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartDoctypeDeclHandler = _refuse
    if builder is not None:
        parser.buffer_text = True
        parser.StartElementHandler = builder.start
        parser.EndElementHandler = builder.end
        parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(document, True)  # noqa: FBT003  (expat takes it by position only)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two: a DTD, or an unknown encoding
        raise NotWellFormedError(str(error)) from error


def _refuse(*_declaration: object) -> NoReturn:
    raise NotWellFormedError("it has a DTD")
