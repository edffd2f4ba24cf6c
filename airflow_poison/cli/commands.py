"""All commands, for both command lines."""

from __future__ import annotations

from typing import Final

from airflow_poison.cli.declared import dialogs, looking, messages, settings, state
from airflow_poison.cli.declared.argument import Argument, Command

__all__ = ["COMMANDS", "GROUP", "HELP", "Argument", "Command"]

GROUP: Final = "poison"
HELP: Final = "Poison messages: queues and their messages, and what settings mean and do"

COMMANDS: Final = (
    looking.LIST,
    looking.SHOW,
    looking.INSPECT,
    looking.HISTORY,
    messages.SEND,
    messages.RECEIVE,
    messages.RETURN,
    messages.MOVE,
    messages.REMOVE,
    dialogs.SERVICES,
    dialogs.CONVERSATIONS,
    dialogs.BEGIN_DIALOG,
    dialogs.SEND_ON,
    dialogs.SET_TIMER,
    dialogs.END_CONVERSATION,
    state.ENABLE,
    state.DISABLE,
    state.ALTER,
    state.RESTART,
    state.DECIDE,
    state.RECOVER,
    state.MAINTAIN,
    looking.CHECK,
    settings.POLICIES,
    settings.SIMULATE,
)
