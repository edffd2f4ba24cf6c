"""Commands on conversations and services."""

from __future__ import annotations

from typing import Final

from airflow_poison.cli.declared.argument import QUEUE, QUEUES, SAVE, WHERE, YES, Argument, Command, option, switch

_CONVERSATION: Final = Argument(("conversation",), {"metavar": "CONVERSATION", "help": "its handle at this side"}, "handles")
_BODIES: Final = Argument(("bodies",), {"metavar": "BODY", "nargs": "+", "help": "messages, one argument each"})
_TYPE: Final = option("--message-type", "TYPE", "type of every message (default: the only one that the contract lets this side send)")
_KEY: Final = option("--send-key", "KEY", "names what is done: later the same key does nothing again")
_WAIT: Final = option("--wait", "DURATION", "how long to wait while a pass holds the conversation's group (default: not at all)")

SERVICES: Final = Command(
    name="services",
    help="List services with their queues and contracts",
    description="List the services of a store: their queues, contracts and message types. "
    "Exit code 0: listed, 1: there is no service, 2: it could not be listed.",
    function="airflow_poison.cli.dialogs.services",
    arguments=(QUEUES, *WHERE),
)

CONVERSATIONS: Final = Command(
    name="conversations",
    help="List a queue's conversations, or show one",
    description="List the conversation endpoints of a queue: state, partner, timers and what waits. "
    "Exit code 0: listed, 1: there is none, 2: it could not be listed.",
    function="airflow_poison.cli.dialogs.conversations",
    arguments=(
        QUEUE,
        option("--conversation", "HANDLE", "this one, whole", completes="handles"),
        switch("--ended", "also those that are remembered only because they have ended"),
        *WHERE,
    ),
)

BEGIN_DIALOG: Final = Command(
    name="begin-dialog",
    help="Begin a dialog with another service",
    description="Begin a dialog and send its first messages, in one commit. Exit code 0: begun, or begun before with this key, 2: nothing was begun.",
    function="airflow_poison.cli.dialogs.begin_dialog",
    arguments=(
        QUEUE,
        _BODIES,
        Argument(("--service",), {"metavar": "SERVICE", "required": True, "help": "the service of this queue that begins it"}, "services"),
        Argument(("--far-service",), {"metavar": "SERVICE", "required": True, "help": "the partner"}, "services"),
        option("--contract", "CONTRACT", "one of the service's (default: its only one)"),
        _TYPE,
        option("--priority", "N", "of the dialog, 1 to 10 (default: 5)"),
        option("--lifetime", "DURATION", "how long the dialog may last at most (default: for ever)"),
        option("--timer", "DURATION", "a conversation timer of this side, set at once"),
        option("--group", "GROUP", "conversation group of a related conversation (default: a group of its own)"),
        _KEY,
        *WHERE,
    ),
)

SEND_ON: Final = Command(
    name="send-on",
    help="Send further messages on a conversation",
    description="Send on a conversation, in one commit. "
    "Exit code 0: sent, or sent before with this key, 1: there is no such conversation, 2: nothing was sent.",
    function="airflow_poison.cli.dialogs.send_on",
    arguments=(QUEUE, _CONVERSATION, _BODIES, _TYPE, _WAIT, _KEY, *WHERE),
)

SET_TIMER: Final = Command(
    name="set-timer",
    help="Set the timer of a conversation",
    description="Set the conversation timer of this side, or start it again. "
    "Exit code 0: set, 1: there is no such conversation, 2: it could not be set.",
    function="airflow_poison.cli.dialogs.set_timer",
    arguments=(
        QUEUE,
        _CONVERSATION,
        Argument(("timeout",), {"metavar": "DURATION", "help": "when it expires, from now"}),
        _WAIT,
        *WHERE,
    ),
)

END_CONVERSATION: Final = Command(
    name="end-conversation",
    help="End a conversation, and with it a poison message",
    description="Print or save the messages of a conversation that wait in the queue, then end this side of it; they go for good. Asks first on a "
    "terminal. Exit code 0: ended, 1: there is no such conversation, or not wanted, 2: it could not be done.",
    function="airflow_poison.cli.removal.end_conversation",
    arguments=(
        QUEUE,
        _CONVERSATION,
        option("--error", "N", "a code, 1 to 2147483647, that the partner is told (default: the conversation ends without an error)"),
        option("--description", "TEXT", "what the partner reads, together with --error"),
        switch("--cleanup", "remove everything at this side without telling the partner"),
        switch("--enable", "also enable the queue, in the order that its settings want"),
        _WAIT,
        SAVE,
        YES,
        *WHERE,
    ),
)
