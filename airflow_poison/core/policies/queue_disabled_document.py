"""The document of the event ``Broker:Queue Disabled`` (spec SB-16, SB-17).

UNVERIFIED: no sample with values was found in public sources. Its shape is modelled on that of ``QUEUE_ACTIVATION``
(spec section 11, item 5); the names of the event, the message type and the contract are documented ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from airflow_poison.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACE_EVENT = "Broker:Queue Disabled"
TRACE_EVENT_CLASS = 143
EVENT_TYPE = "BROKER_QUEUE_DISABLED"
"""The type of its event notification."""
MESSAGE_TYPE = "http://schemas.microsoft.com/SQL/Notifications/EventNotification"
CONTRACT = "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"

_ROOT = "EVENT_INSTANCE"
_OBJECT_TYPE = "QUEUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDisabledDocument:
    """What the document says. A queue table has neither a server nor a login nor a session number: these are empty, or 0.

    :param queue: the queue, ``ObjectName``.
    :param post_time: when it was disabled, UTC.
    """

    queue: str
    post_time: datetime
    database_name: str = ""
    schema_name: str = "dbo"
    server_name: str = ""
    login_name: str = ""
    user_name: str = ""
    spid: int = 0

    def to_xml(self) -> str:
        """Return the ``EVENT_INSTANCE`` document."""
        root = ET.Element(_ROOT)
        for name, text in self._children().items():
            ET.SubElement(root, name).text = text
        return ET.tostring(root, encoding="unicode", short_empty_elements=False)

    @classmethod
    def from_xml(cls, document: str) -> QueueDisabledDocument:
        """Return what a document says; unknown elements are passed over. Raises InputError for one that is no such event."""
        said = _children(document)
        kind, about = said.get("EventType"), said.get("ObjectType")
        if (kind, about) != (EVENT_TYPE, _OBJECT_TYPE):
            raise InputError(f"the event document is about {kind} of a {about}: expected {EVENT_TYPE} of a {_OBJECT_TYPE}.")
        try:
            posted = datetime.fromisoformat(said["PostTime"])
            return cls(
                queue=said["ObjectName"],
                post_time=posted if posted.tzinfo else posted.replace(tzinfo=UTC),
                database_name=said.get("DatabaseName", ""),
                schema_name=said.get("SchemaName", ""),
                server_name=said.get("ServerName", ""),
                login_name=said.get("LoginName", ""),
                user_name=said.get("UserName", ""),
                spid=int(said.get("SPID") or 0),
            )
        except (KeyError, ValueError) as error:
            raise InputError(f"the event document lacks a readable PostTime, ObjectName or SPID: {error!r}.") from error

    def _children(self) -> Mapping[str, str]:
        return {
            "EventType": EVENT_TYPE,
            "PostTime": self.post_time.astimezone(UTC).isoformat(timespec="milliseconds"),
            "SPID": str(self.spid),
            "ServerName": self.server_name,
            "LoginName": self.login_name,
            "UserName": self.user_name,
            "DatabaseName": self.database_name,
            "SchemaName": self.schema_name,
            "ObjectName": self.queue,
            "ObjectType": _OBJECT_TYPE,
        }


def _children(document: str) -> Mapping[str, str]:
    """Return the children of the root. A document with a DTD is refused: it could grow without bound."""
    if "<!DOCTYPE" in document:
        raise InputError("the event document has a DTD: an event has none.")
    try:
        root = ET.fromstring(document)  # noqa: S314  (without a DTD there are no entities to expand)
    except ET.ParseError as error:
        raise InputError(f"the event document is not well-formed XML: {error}.") from error
    if root.tag != _ROOT:
        raise InputError(f"the event document's root is {root.tag}: expected {_ROOT}.")
    return {child.tag: child.text or "" for child in root}
