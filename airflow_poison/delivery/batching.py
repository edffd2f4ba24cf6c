"""Batching: how messages are handed to a handler many at a time, as a task declares it, and what that does not go with."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from airflow_poison.values.ddl import column_names
from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import LOOKUP_ID

if TYPE_CHECKING:
    from airflow_poison.rules.policy import Policy

FRAMES = {"arrow": "pyarrow", "pandas": "pandas", "polars": "polars"}
"""The kinds of frames, and the module that each needs."""
BATCH_SIZE, LARGEST_BATCH = 10_000, 1_000_000
BATCH_BYTES = 64 << 20
"""Bytes of messages in a batch, beside its number of messages; a message that is larger comes alone."""


@dataclass(frozen=True, slots=True)
class Batching:
    """What a handler of batches gets.

    :param kind: ``arrow`` (pyarrow.Table), ``pandas`` or ``polars`` (DataFrame).
    :param size: messages in a frame at most.
    :param schema: the columns of the bodies, JSON objects, as DDL; None: the columns of the messages.
    """

    kind: str
    size: int = BATCH_SIZE
    schema: str | None = None

    @classmethod
    def of(cls, batch: str | None, batch_size: int = BATCH_SIZE, schema: str | None = None) -> Batching | None:
        """Return what the parameters of a task declare; None: its handler gets one message at a time. Raises SettingError."""
        if batch is None:
            if schema is not None:
                raise SettingError(
                    "schema", schema, "None for a handler of single messages; the columns of the bodies as DDL with transform=... or batch=..."
                )
            return None
        if batch not in FRAMES:
            raise SettingError("batch", batch, "'arrow', 'pandas', 'polars', or None for one message at a time")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= LARGEST_BATCH:
            raise SettingError("batch_size", batch_size, f"a whole number of messages from 1 to {LARGEST_BATCH:,}")
        if schema is not None and LOOKUP_ID in column_names(schema):
            raise SettingError("schema", schema, f"columns of other names than {LOOKUP_ID!r}, which the frame has beside those of the bodies")
        return cls(batch, batch_size, schema)

    def check_policy(self, policy: Policy) -> None:
        """Raise SettingError for a policy whose transactions cannot be batches."""
        if (most := getattr(policy, "max_batch_size", 0)) > 1:
            raise SettingError("batch", self.kind, f"no batch while the policy batches by its own rules (max_batch_size={most}); set that to 0")
        if getattr(policy, "sessions", False):
            raise SettingError("batch", self.kind, "no batch while a message is a session of several items (sessions=True)")
        if not policy.stateless and policy.sweeps:
            raise SettingError("batch", self.kind, "no batch while a receive goes on behind the message that was taken last (spec WMQ-29)")
        if not policy.stateless and policy.server_sessions > 1:
            raise SettingError(
                "batch",
                self.kind,
                f"no batch while {policy.server_sessions} messages are processed at the same time in the order of the queue; set the policy's number "
                "of sessions or readers to 1",
            )

    def check_here(self) -> None:
        """Raise SettingError when the library of the frames is not installed here."""
        module = FRAMES[self.kind]
        if find_spec(module) is None:
            raise SettingError("batch", self.kind, f"a kind of frame whose library is installed; {module} is not: pip install {module}")


def refuse_dialogs(batching: Batching | None, queue: str) -> None:
    """Raise SettingError for batches of a queue that has conversations: each of its messages acts in its own."""
    if batching is not None:
        raise SettingError("batch", batching.kind, f"no batch for queue {queue!r}: it has conversations, in which each message acts by itself")
