"""What a dialog is begun with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_poison.core.conversations import acts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialog:
    """A dialog that is to be begun, with its first messages.

    :param messages: types and bodies, at least one: nobody hears of a dialog on which nothing is sent.
    :param group_id: the group of a conversation that it is related to; None: a group of its own.
    :param priority: 1 to 10. :param lifetime: how long it may last at most; None: for ever.
    :param timer: a conversation timer of this side, set at once; None: none.
    """

    messages: Sequence[tuple[str, bytes]]
    group_id: str | None = None
    priority: int = acts.DEFAULT_PRIORITY
    lifetime: timedelta | None = None
    timer: timedelta | None = None
