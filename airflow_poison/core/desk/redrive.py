"""Redrive for a new handler: when a handler's code has changed, some messages of each error group go back to main by themselves, and then the others.

Off unless a queue is set so. Each error group has a plan of its own with a canary: what becomes of the canary decides about its group alone. A code
is redriven once in a queue, whatever comes after it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_poison.core.desk.actions import PlanAction, Verb
from airflow_poison.core.desk.applying import apply
from airflow_poison.core.desk.found import groups
from airflow_poison.core.desk.plans import Canary, cancel, facts_of, find_plan, plan, record
from airflow_poison.core.desk.selection import Selection
from airflow_poison.core.desk.settings import configure
from airflow_poison.core.errors import PlanStateError, SettingError
from airflow_poison.core.fault_points import reach
from airflow_poison.core.store.control import QueueState
from airflow_poison.core.store.files import PlanState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_poison.core.clock import Clock
    from airflow_poison.core.desk.plans import PlanView
    from airflow_poison.core.store.control import Control, HandlerCode
    from airflow_poison.core.store.queue_table import QueueTable

SETTING, SEEN = "redrive_on_new_handler", "handlers"
"""The parts of a queue's desk: the canary of a redrive; and the codes of handlers that are not new any more, the newest last."""
HANDLER, GROUP = "handler", "group"
"""What the events of a redrive's plans say: the code of the handler, and the error group."""
MOST_GROUPS = 100
"""The largest error groups that are redriven; the others are left to people."""
_MOST_SEEN = 1_000
_UNDER_WAY = frozenset({PlanState.CANARY, PlanState.RUNNING})


def set_redrive(table: QueueTable, canary: Canary | Mapping[str, Any] | None, clock: Clock) -> Canary | None:
    """Let a queue redrive by itself when its handler is a new one; None: not any more, which is the default. Raises SettingError.

    The handler of the last pass is no new one.

    :param canary: so many messages of each error group go first, and such a share of them must be settled before the others follow.
    """
    wanted = checked_canary(canary)
    control = table.snapshot().control
    known = control.handler_code()
    if wanted is None:
        configure(table, clock, **{SETTING: None, SEEN: None})
    elif SETTING in control.desk or known is None:
        configure(table, clock, **{SETTING: wanted.to_dict()})
    else:
        configure(table, clock, **{SETTING: wanted.to_dict(), SEEN: [known.code]})
    return wanted


def checked_canary(canary: Canary | Mapping[str, Any] | None) -> Canary | None:
    """Return a canary that is given as such or as plain values. Raises SettingError."""
    if canary is None or isinstance(canary, Canary):
        return canary
    try:
        return Canary(**canary)
    except TypeError:
        raise SettingError(SETTING, canary, "Canary(10, 0.95), {'messages': 10, 'share': 0.95}, or None") from None


def redrive(table: QueueTable, clock: Clock, code: HandlerCode | None = None, *, who: str) -> tuple[PlanView, ...]:
    """Begin a redrive where the handler is a new one, and go on with those that wait for their canaries; return the plans that it has touched.

    Called before a pass claims anything, or without one: then the handler is that of the last pass. Killed anywhere and called again, it does each
    message once. A queue that is not enabled is left as it is.

    :param code: of the handler that is about to receive; None: that of the last pass.
    """
    control = table.snapshot().control
    if control.desk.get(SETTING) is None or control.state is not QueueState.ENABLED:
        return ()
    code = code or control.handler_code()
    if code is not None and code.is_sure and code.code not in _seen(control):
        if _seen(control):
            _begin(table, clock, code.code, who)
        reach("desk.redrive.before_seen")
        _note(table, clock, code.code)
    return tuple(_go_on(table, clock))


def _seen(control: Control) -> Sequence[str]:
    seen: Any = control.desk.get(SEEN) or ()
    return tuple(seen)


def _note(table: QueueTable, clock: Clock, code: str) -> None:
    """Note that a code is not new any more."""

    def change(control: Control) -> Control:
        if code in _seen(control):
            return control
        return replace(control, desk={**control.desk, SEEN: [*_seen(control), code][-_MOST_SEEN:]})

    table.alter(change, lambda _before, _after: (), clock.now())


def _begin(table: QueueTable, clock: Clock, code: str, who: str) -> None:
    """Record the plans of a new handler, one for each error group; those of an earlier one that are not done are cancelled."""
    canary = checked_canary(table.snapshot().control.desk.get(SETTING))  # type: ignore[arg-type]  # as it was recorded
    for found in table.stored_plans():
        if facts_of(found).get(HANDLER, code) != code and found.state in _UNDER_WAY:
            with suppress(PlanStateError):  # it has ended meanwhile
                cancel(table, found.plan, clock, who=who, reason=f"handler {code} is newer")
    put_back = PlanAction(verb=Verb.PUT_BACK)
    for group in groups(table, Selection(), clock, limit=MOST_GROUPS).groups:
        if group.error:
            planned = plan(table, Selection(error=group.error), put_back, clock)
            reach("desk.redrive.before_plan")
            record(
                table,
                planned,
                clock,
                who=who,
                reason=f"new handler {code}",
                canary=canary,
                key=f"redrive\x1f{code}\x1f{group.error}",
                facts={HANDLER: code, GROUP: f"{group.type} {group.error}"},
            )
            reach("desk.redrive.after_plan")


def _go_on(table: QueueTable, clock: Clock) -> list[PlanView]:
    """Go on with the plans of redrives as far as their canaries let them."""
    touched = []
    for found in table.stored_plans():
        if HANDLER in facts_of(found) and found.state in _UNDER_WAY:
            with suppress(PlanStateError):  # somebody has cancelled it meanwhile
                apply(table, found.plan, clock)
            touched.append(find_plan(table, found.plan))
    return touched
