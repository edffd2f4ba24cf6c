"""The options of a selection, the same for every command, and the Selection that they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_poison.cli import values
from airflow_poison.cli.command import PLACES, option, several, wrong_usage

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.desk.selection import Selection

ANY: Final = "any"
SELECTION: Final = (
    option("--sub-queue", "PLACE", f"where they wait: {', '.join(PLACES)} or {ANY} (default: poison; with --ids: {ANY})", completes=(*PLACES, ANY)),
    option("--error", "GROUP", "of this error group, an id that 'groups' lists", completes="errors"),
    option("--error-type", "TYPE", "that failed with this type, for example KeyError"),
    option("--text", "TEXT", "with this text in the failure's message or in the body, in any case"),
    option("--since", "WHEN", "sent from then on: an instant (2013-01-01T12:00Z), or a duration before now (2h)"),
    option("--until", "WHEN", "sent before then"),
    several("--count", "CONDITION", "with such counts: 'move_count>=3' 'crash_count>0'"),
    option("--group", "GROUP", "of this group of messages"),
    option("--message-type", "TYPE", "of this message type"),
    option("--message-id", "ID", "with this message id"),
    several("--property", "NAME=VALUE", "with these properties"),
    option("--ids", "ID,...", "these lookup ids: 1,2,5-9"),
    option("--where", "SQL", "a condition on columns and the JSON body: \"body.carrier = 'VX' and body.dep_delay > 60\""),
)
"""What every command takes that is about many messages."""
_NAMES = ("sub_queue", "error", "error_type", "text", "since", "until", "count", "group", "message_type", "message_id", "property", "ids", "where")


def is_selected(args: Namespace) -> bool:
    """Whether one of the options is given."""
    return any(getattr(args, name) is not None for name in _NAMES)


def selection(args: Namespace) -> Selection:
    """Return what the options select; nothing given: all poison. Raises InputError, SettingError."""
    from airflow_poison.desk.selection import Selection

    now = values.now()
    place = args.sub_queue or (ANY if args.ids is not None else "poison")
    given = {name: getattr(args, name) for name in ("error", "error_type", "text", "group", "message_type", "message_id", "where")}
    for name, text in given.items():
        if text is not None and not text.strip():
            raise wrong_usage(f"--{name.replace('_', '-')} {text!r}: expected a text; an empty variable of the shell would select everything.")
    found = {name: text for name, text in given.items() if text is not None}
    wanted = values.one_of("--sub-queue", place, (*PLACES, ANY))
    return Selection.from_dict(
        found
        | {
            "sub_queue": None if wanted == ANY else wanted,
            "since": None if args.since is None else values.since(args.since, now),
            "until": None if args.until is None else values.since(args.until, now, "--until"),
            "counts": list(args.count or ()),
            "properties": values.pairs("--property", args.property or ()),
            "lookup_ids": args.ids,
        }
    )
