"""What the policies of the WebSphere MQ messaging provider do the same way with their settings (spec sections 6, 7 and 8)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_poison.core.errors import ConfigurationHint, ConfigurationWarning, SettingError
from airflow_poison.core.policies import backout, settings
from airflow_poison.core.policies.base import SystemSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_poison.core.policies.decisions import Counts
    from airflow_poison.core.policies.restarts import Restart

Warned = tuple[str, type[ConfigurationWarning]]

SYSTEM_DEAD_LETTER_QUEUE: Final = "SYSTEM.DEAD.LETTER.QUEUE"
MOST_EARLY_HAND_OUTS: Final = 2
_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_MANAGER_NAME: Final = re.compile(r"[A-Za-z0-9._/%]{0,48}", re.ASCII)


class NextMessage(StrEnum):
    """Which message a session takes next (spec WMQ-29)."""

    SWEEP = "sweep"  # the one behind the last that was taken; at the end from the top again
    TOP = "top"  # the top of the queue


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSphereMqSettings(SystemSettings):
    """Base of frozen settings: the attributes of the queue, its queue manager, and how sessions take messages.

    :param backout_threshold: BOTHRESH: rollbacks after which a message is requeued, 0 to 2147483647; 0: never (spec WMQ-11).
    :param backout_requeue_queue: BOQNAME: the queue that it is requeued to; empty: the dead-letter queue (spec WMQ-10).
    :param dead_letter_queue: the queue manager's DEADQ (spec WMQ-22).
    :param queue_manager: its name in dead-letter headers, up to 48 characters (spec WMQ-25).
    :param compare: a message is requeued when its count is ``at_least`` BOTHRESH or only when it ``equals`` it (spec section 11, item 20).
    :param zos: the queue manager runs on z/OS, which counts rollbacks on a copy in memory (spec ZOS-1 to ZOS-5).
    :param harden_get_backout: HARDENBO: on z/OS, whether the stored count rises with the copy's and survives a restart of the queue
        manager (spec ZOS-6). None: not on z/OS. Elsewhere the count is always kept (spec ZOS-9).
    :param shared_queue: on z/OS, a shared queue, which always keeps the count (spec ZOS-9).
    :param transaction_timeout: the total transaction lifetime: how long one delivery may take, a duration > 0.
    :param next_message: ``sweep`` or ``top``; None: a sweep with several sessions, else the top (spec WMQ-29).
    :param early_hand_out: how many sessions get their next message before all results of a round are in, 0 to 2 (spec WMQ-20).
    """

    reads_properties = True
    aliases: ClassVar[Mapping[str, str]] = {
        "Backout threshold": "backout_threshold",
        "BOTHRESH": "backout_threshold",
        "backoutThreshold": "backout_threshold",
        "Backout requeue queue": "backout_requeue_queue",
        "BOQNAME": "backout_requeue_queue",
        "backoutRequeueName": "backout_requeue_queue",
        "DEADQ": "dead_letter_queue",
        "QMNAME": "queue_manager",
        "queueManager": "queue_manager",
        "HARDENBO": "harden_get_backout",
        "NOHARDENBO": "harden_get_backout",
        "HNDBKTCNT": "harden_get_backout",
        "HardenGetBackout": "harden_get_backout",
    }

    backout_threshold: int = 0
    backout_requeue_queue: str = ""
    dead_letter_queue: str = SYSTEM_DEAD_LETTER_QUEUE
    queue_manager: str = ""
    compare: backout.Compare | str = backout.Compare.AT_LEAST
    zos: bool = False
    harden_get_backout: bool | None = None
    shared_queue: bool = False
    transaction_timeout: timedelta = timedelta(seconds=120)
    next_message: NextMessage | str | None = None
    early_hand_out: int = 0

    @property
    def effective_transaction_timeout(self) -> timedelta:
        """How long one delivery may take."""
        return self.transaction_timeout

    @property
    def sweeps(self) -> bool:
        """Whether a session takes the message behind the last that was taken (spec WMQ-29)."""
        if self.next_message is None:
            return self.server_sessions > 1
        return self.next_message == NextMessage.SWEEP

    @property
    def destinations(self) -> tuple[str, ...]:
        """The backout queue, which somebody must have made; a dead-letter queue belongs to every queue manager."""
        return tuple(filter(None, (self.backout_requeue_queue,)))

    @property
    def hardened(self) -> bool:
        """Whether the stored message carries the count (spec ZOS-6, ZOS-9)."""
        return not self.zos or self.shared_queue or self.harden_get_backout is True

    def counts_after(self, counts: Counts, restart: Restart) -> Counts:
        """Lose the copy's count when the queue manager restarts, and no count elsewhere (spec ZOS-5)."""
        return backout.counts_after(self, counts, restart)

    @classmethod
    def arguments(cls, stored: Mapping[str, object]) -> dict[str, Any]:
        """Return the constructor's arguments from JSON values, in our words or MQ's. Raises SettingError."""
        return arguments(cls, stored)


def arguments(policy: type[WebSphereMqSettings], stored: Mapping[str, object]) -> dict[str, Any]:
    """Return a policy's arguments from JSON values, with the values of HARDENBO in any of MQ's words. Raises SettingError."""
    return settings.from_json(policy, {name: _our_value(name, value) for name, value in stored.items()})


def check(policy: WebSphereMqSettings) -> None:
    """Check the shared settings, from ``__post_init__``. Raises SettingError."""
    settings.put(
        policy,
        backout_threshold=settings.whole_number("backout_threshold", policy.backout_threshold),
        backout_requeue_queue=_name("backout_requeue_queue", policy.backout_requeue_queue, "a queue's name, or nothing", may_be_empty=True),
        dead_letter_queue=_name("dead_letter_queue", policy.dead_letter_queue, "a queue's name"),
        queue_manager=_manager("queue_manager", policy.queue_manager),
        compare=settings.choice("compare", policy.compare, backout.Compare),
        zos=settings.flag("zos", policy.zos),
        shared_queue=settings.flag("shared_queue", policy.shared_queue),
        transaction_timeout=settings.duration("transaction_timeout", policy.transaction_timeout, timedelta(microseconds=1)),
        early_hand_out=settings.whole_number("early_hand_out", policy.early_hand_out, most=MOST_EARLY_HAND_OUTS),
    )
    if policy.harden_get_backout is not None:
        settings.flag("harden_get_backout", policy.harden_get_backout)
    if policy.next_message is not None:
        settings.put(policy, next_message=settings.choice("next_message", policy.next_message, NextMessage))


def warnings_of(policy: WebSphereMqSettings) -> Iterator[Warned]:
    """Return what is rarely wanted of the queue's attributes (spec WMQ-E9, ZOS-9)."""
    threshold = policy.backout_threshold
    if threshold and not policy.backout_requeue_queue:
        yield f"backout_threshold={threshold} without backout_requeue_queue: {policy.dead_letter_queue} will be used.", ConfigurationWarning
    if policy.zos and threshold > backout.LARGEST_ON_ZOS:
        text = f"backout_threshold={threshold} is never reached on z/OS: backouts are counted up to {backout.LARGEST_ON_ZOS} there."
        yield text, ConfigurationWarning
    if not policy.zos and (policy.shared_queue or policy.harden_get_backout is False):
        yield "harden_get_backout and shared_queue change nothing outside z/OS: the count is always kept there.", ConfigurationHint


_YES_AND_NO: Final = {"yes": True, "no": False, "mqqa_backout_hardened": True, "mqqa_backout_not_hardened": False}


def _our_value(name: str, value: object) -> object:
    """Translate what MQ calls hardened and not hardened (spec ZOS-9); leave everything else."""
    aliases = {alias.lower(): ours for alias, ours in WebSphereMqSettings.aliases.items()}
    if aliases.get(name.lower(), name) != "harden_get_backout":
        return value
    meant = _YES_AND_NO.get(value.lower(), value) if isinstance(value, str) else value
    return not meant if name.lower() == "nohardenbo" and isinstance(meant, bool) else meant


def _name(setting: str, value: object, allowed: str, *, may_be_empty: bool = False) -> str:
    if isinstance(value, str) and (_QUEUE_NAME.fullmatch(value) or (may_be_empty and not value)):
        return value
    raise SettingError(setting, value, allowed)


def _manager(setting: str, value: object) -> str:
    if isinstance(value, str) and _MANAGER_NAME.fullmatch(value):
        return value
    raise SettingError(setting, value, "up to 48 letters, digits, '.', '/', '_' and '%'")
