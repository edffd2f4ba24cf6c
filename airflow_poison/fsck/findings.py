"""Findings: what is wrong with a queue table, where, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_poison.values.texts import Plain


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Messages are missing, doubled, changed or unreadable, or verbs refuse the table."""
    WARNING = "warning"
    """Something was left undone; nothing is lost."""
    NOTE = "note"
    """A file that is not needed was left behind."""


class Kind(StrEnum):
    """What is wrong."""

    LOG_DAMAGED = "log_damaged"
    LOG_GAP = "log_gap"
    LAST_COMMIT_TORN = "last_commit_torn"
    CHECKPOINT_TORN = "checkpoint_torn"
    CHECKPOINT_DIFFERS = "checkpoint_differs"
    FOREIGN_COMMIT = "foreign_commit"
    PROTECTION_MISSING = "protection_missing"
    FORMAT_NEWER = "format_newer"
    CONTROL_ROWS = "control_rows"
    CONTROL_UNREADABLE = "control_unreadable"
    BLOCK_INCONSISTENT = "block_inconsistent"
    SUBSCRIPTION_AHEAD = "subscription_ahead"
    POLICY_UNKNOWN = "policy_unknown"
    HELD_MESSAGES = "held_messages"
    OUTBOX_LEFT = "outbox_left"
    LANDING_LEFT = "landing_left"
    FILE_MISSING = "file_missing"
    FILE_CHANGED = "file_changed"
    FILE_UNREADABLE = "file_unreadable"
    FILE_MISPLACED = "file_misplaced"
    ORPHANED_FILES = "orphaned_files"
    NOT_CONSERVED = "not_conserved"
    HISTORY_IMPOSSIBLE = "history_impossible"
    MESSAGE_TWICE = "message_twice"
    MESSAGE_UNKNOWN = "message_unknown"
    MESSAGES_MISSING = "messages_missing"
    COUNT_FELL = "count_fell"
    EVENT_ORDER = "event_order"
    TRANSMISSION_ORDER = "transmission_order"
    ENDPOINT_TWICE = "endpoint_twice"
    CLAIM_UNREADABLE = "claim_unreadable"
    CLAIM_EXPIRED = "claim_expired"
    CLAIM_FILES_GONE = "claim_files_gone"
    CLAIMS_OVERLAP = "claims_overlap"
    STAGE_LEFT = "stage_left"
    STAGE_DAMAGED = "stage_damaged"
    JOURNAL_DAMAGED = "journal_damaged"
    CREATION_LEFT = "creation_left"
    OTHER_TABLE = "other_table"
    CONDITION_IGNORED = "condition_ignored"


@dataclass(frozen=True, slots=True)
class Finding(Plain):
    """One thing that is wrong.

    :param what: what is wrong, a sentence without a full stop.
    :param where: a path below the queue's folder, a version, a run key; empty: the whole table.
    :param todo: what to do, a sentence without a full stop.
    :param mendable: ``repair`` can mend it without guessing.
    """

    kind: Kind
    severity: Severity
    what: str
    where: str
    todo: str
    mendable: bool = False


REPAIR = "run the check with --repair"
RESTORE = "restore the table or the file from a backup, and find who changes it: only the package may write there"
GO_ON_WITHOUT = "to go on without it, run the check with --repair --accept-loss"
MOVE_AWAY = "stop all senders and passes, and copy the objects to a store that honours If-None-Match on PUT, or update the store or its proxy"
REPORT = "keep a copy of the table, and report it with the output of this check"
