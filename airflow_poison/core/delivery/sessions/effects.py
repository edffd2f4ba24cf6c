"""Effects: what a message did to the conversation endpoint that received it, written to a journal's log before its word says so.

Each says of which endpoint it was made. Whoever resumes begins with the endpoint that is stored and follows them, from each to the one that was
made of its result: what was lost with a machine, and all that was made of it, is not there then, and is delivered again.
"""

from __future__ import annotations

import json
import os
import zlib
from base64 import b64decode, b64encode
from dataclasses import astuple, dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from airflow_poison.core.conversations.endpoint import Change, ConversationEndpoint, Envelope, Outgoing
from airflow_poison.core.errors import ServerSessionError

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGINNING = b'{"effect":'
_WHAT = b',"change":'


class Needs(StrEnum):
    """What makes an effect count besides its line."""

    NOTHING = ""
    COMMITTED = "committed"  # the word of its message says so
    ENDED = "ended"  # the word of its message says so


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect as its line begins.

    :param before: the mark of the endpoint that it was made of; ``after``: of the one that it made.
    :param checksum: of what was written behind.
    """

    lookup_id: int
    handle: str
    before: str
    after: str
    needs: str
    checksum: int


@dataclass(frozen=True, slots=True)
class Told:
    """Where a log tells what an effect did.

    :param size: of the line in bytes.
    """

    effect: Effect
    path: str
    offset: int
    size: int

    def change(self) -> Change:
        """Read it. Raises ServerSessionError when the log is not what it was."""
        try:
            with open(self.path, "rb") as file:  # noqa: PTH123  (a plain string travels)
                line = os.pread(file.fileno(), self.size, self.offset)
            if effect_of(line) == self.effect:
                return _change_of(json.loads(_split(line)[1]))
            why = "its content has changed"
        except OSError as error:
            why = error.strerror or str(error)
        raise ServerSessionError(
            f"The attempt journal {self.path!r} cannot be read again: {why}. Nothing was committed; message {self.effect.lookup_id} was delivered "
            "and what it sent is told only there. Restore the file and run the task again; if it is lost for good, remove it."
        )

    def to_record(self) -> dict[str, object]:
        """Return JSON values."""
        return {"told": [*astuple(self.effect), self.path, self.offset, self.size]}

    @classmethod
    def of_record(cls, values: list[Any]) -> Told:
        """Return what ``to_record`` has told."""
        *effect, path, offset, size = values
        return cls(Effect(*effect), path, offset, size)


def mark_of(endpoint: ConversationEndpoint | None) -> str:
    """Return what tells one version of an endpoint from all others; empty for none."""
    if endpoint is None:
        return ""
    return blake2b(json.dumps(endpoint.to_dict(), sort_keys=True).encode(), digest_size=12).hexdigest()


def line_of(lookup_id: int, before: ConversationEndpoint | None, change: Change, needs: Needs) -> bytes:
    """Return the line of an effect."""
    what = json.dumps({"endpoint": change.endpoint.to_dict(), "sent": [_record_of(message) for message in change.sent]}).encode()
    effect = Effect(lookup_id, change.endpoint.handle, mark_of(before), mark_of(change.endpoint), needs.value, zlib.crc32(what))
    return b"".join((BEGINNING, json.dumps(astuple(effect)).encode(), _WHAT, what, b"}"))


def effect_of(line: bytes) -> Effect | None:
    """Return the effect that a whole line tells; None for one that is torn or damaged."""
    if not (line.startswith(BEGINNING) and line.endswith(b"}") and _WHAT in line):
        return None
    beginning, what = _split(line)
    try:
        effect = Effect(*json.loads(beginning))
    except (ValueError, TypeError):
        return None
    return effect if zlib.crc32(what) == effect.checksum else None


def _split(line: bytes) -> tuple[bytes, bytes]:
    at = line.index(_WHAT)
    return line[len(BEGINNING) : at], line[at + len(_WHAT) : -1]


def _record_of(message: Outgoing) -> list[object]:
    return [message.envelope.to_text(), message.message_type, message.priority, b64encode(message.body).decode()]


def _change_of(record: dict[str, Any]) -> Change:
    sent: Iterator[Outgoing] = (
        Outgoing(Envelope.from_text(envelope), message_type, b64decode(body), priority) for envelope, message_type, priority, body in record["sent"]
    )
    return Change(ConversationEndpoint.from_dict(record["endpoint"]), tuple(sent))
