"""Messages as people are shown them: frozen values, and plain ones for JSON."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from airflow_poison.core.texts import body_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from airflow_poison.core.texts import BodyText

MOST_BODY_BYTES = 64 * 1024
"""How much of a body ``to_dict`` keeps."""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message and where it is; the columns of a queue table.

    :param last_error: kind, type, message, fingerprint and trace of its last failure; None before the first.
    :param reason: its last failure, one line.
    """

    lookup_id: int
    message_id: str
    sub_queue: str
    abort_count: int
    move_count: int
    crash_count: int = 0
    priority: int = 0
    group_id: str | None = None
    conversation_id: str | None = None
    message_type: str | None = None
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    enqueued_at: datetime | None = None
    expires_at: datetime | None = None
    due_at: datetime | None = None
    last_error: Mapping[str, str | None] | None = None
    reason: str | None = None

    @classmethod
    def of(cls, rows: pa.Table) -> Iterator[Self]:
        """Yield the messages of rows of ``table_schema()``."""
        for row in rows.to_pylist():
            numbers = {name: row[name] or 0 for name in ("abort_count", "move_count", "crash_count", "priority")}
            texts = {"body": row["body"] or b"", "message_id": row["message_id"] or "", "properties": dict(row["properties"] or ())}
            yield cls(**{**row, **numbers, **texts})

    @property
    def text(self) -> str | None:
        """The body as UTF-8 text; None when it is none."""
        try:
            return self.body.decode()
        except UnicodeDecodeError:
            return None

    def shown(self, most: int | None = None) -> BodyText | None:
        """Return the body as people read it: XML as it says itself, all else as UTF-8. None: it is no text.

        :param most: so many bytes of it.
        """
        return body_text(self.body, most)

    def to_dict(self) -> dict[str, object]:
        """Return plain values. The body is text where it is UTF-8, else Base64, of its first 64 KiB.

        ``body_encoding`` says which, ``body_bytes`` how long the whole body is, ``body_cut`` whether something is missing.
        """
        plain: dict[str, Any] = {each.name: _plain(getattr(self, each.name)) for each in fields(self)}
        is_text = self.text is not None
        begin = self.body[:MOST_BODY_BYTES]
        return plain | {
            "body": begin.decode(errors="ignore") if is_text else base64.b64encode(begin).decode(),
            "body_encoding": "text" if is_text else "base64",
            "body_bytes": len(self.body),
            "body_cut": len(self.body) > MOST_BODY_BYTES,
        }


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(value) if isinstance(value, dict) else value
