"""Values of arguments as people type them: policies, selections, instants; and what the shell completes.

Airflow's completion is argcomplete's, which asks an argument's ``completer``; so does ours without Airflow.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_poison.cli.command import PLACES, Argument, noted_warnings, option, others_on_stderr, queue_of, several, store_of, wrong_usage

if TYPE_CHECKING:
    import argparse
    from argparse import Namespace

    from airflow_poison.desk.selection import Selection
    from airflow_poison.rules.outage import Outage
    from airflow_poison.rules.policy import Policy
    from airflow_poison.rules.simulation.scripted_host import Action


def completes(action: argparse.Action, argument: Argument) -> None:
    """Set what an argument's action completes."""

    def complete(*, parsed_args: Namespace, **_more: Any) -> Iterable[str]:
        if not isinstance(argument.completes, str):
            return argument.completes
        try:
            found: Iterable[str] = globals()[argument.completes](parsed_args)
        except Exception:  # noqa: BLE001  (an error cannot be shown in the middle of a line)
            return []
        return found

    if argument.completes:
        action.completer = complete  # type: ignore[attr-defined]  # what argcomplete looks for


def queues(args: Namespace) -> Iterable[str]:
    """Return the names of the store's queues; none when there is no store to be seen."""
    return store_of(args).names()


def plans(args: Namespace) -> Iterable[str]:
    """Return the ids of the queue's plans, the newest first."""
    return [view.plan for view in queue_of(args).plans()]


def errors(args: Namespace) -> Iterable[str]:
    """Return the ids of the error groups of the queue's poison, the largest first."""
    return [group.error for group in queue_of(args).groups({}, limit=50).groups if group.error]


def handles(args: Namespace) -> Iterable[str]:
    """Return the handles of the queue's conversations."""
    return [row.handle for row in queue_of(args).conversations()]


def services(args: Namespace) -> Iterable[str]:
    """Return the names of the store's services."""
    store = store_of(args)
    return [service for name in store.names() for service in store.queue(name).reading.snapshot().control.services]


def systems(_args: Namespace) -> Iterable[str]:
    """Return the messaging systems."""
    from airflow_poison.rules import SYSTEMS

    return SYSTEMS


def events(_args: Namespace) -> Iterable[str]:
    """Return the types of events."""
    from airflow_poison.values.events import EventType

    return [kind.value for kind in EventType]


def settings(args: Namespace) -> Iterable[str]:
    """Return the settings of the system that stands in the line, else of the queue that does, as ``name=``."""
    from airflow_poison.rules import policy_class
    from airflow_poison.rules.described import settings_of, system_named

    system = getattr(args, "system", None)
    if not isinstance(system, str):
        system = str(queue_of(args).reading.snapshot().control.policy["system"])
    return [f"{setting.name}=" for setting in settings_of(policy_class(system_named(system)))]


_DIGITS = 18


def lookup_ids(given: Iterable[str]) -> list[int]:
    """Return the numbers of ``7 8`` or ``7,8``. Raises InputError, also for a text without any: an empty variable of the shell means no message."""
    return [whole("lookup id", part) for text in given for part in text.rstrip(", ").split(",")]


def listed(text: str | None, default: Sequence[str]) -> Sequence[str]:
    """Return the words between commas."""
    return default if text is None else [part.strip() for part in text.split(",")]


def whole(what: str, text: str, least: int = 0, most: int | None = None) -> int:
    """Return a whole number. Raises InputError."""
    plain = text.strip()
    if plain.isascii() and plain.isdigit() and len(plain) <= _DIGITS and least <= int(plain) <= (int(plain) if most is None else most):
        return int(plain)
    raise wrong_usage(f"{what} {_shown(text)}: expected a whole number from {least} {'on' if most is None else f'to {most}'}.")


def limit(text: str, least: int = 0) -> int | None:
    """Return how many are wanted at most; None: all. Raises InputError."""
    from airflow_poison.values.errors import InputError
    from airflow_poison.values.texts import folded

    if folded(text) == "all":
        return None
    try:
        return whole("--limit", text, least)
    except InputError as error:
        raise wrong_usage(f"{str(error).rstrip('.')}, or all.") from None


def named(option: str, key: str | None) -> None:
    """Raise InputError for a key that is empty: two runs whose variable is not set would be one."""
    if key is not None and not key.strip():
        raise wrong_usage(f"{option} {key!r}: expected a name for what is done once; it is empty.")


def error_code(text: str) -> int:
    """Return the code that ends a conversation. Raises InputError."""
    from airflow_poison.rules.settings import LARGEST

    return whole("--error", text, 1, LARGEST)


def lasting(what: str, text: str) -> timedelta:
    """Return a duration that is more than none. Raises InputError."""
    from airflow_poison.rules.settings import LONGEST

    span = duration(what, text)
    if not timedelta(0) < span <= LONGEST:
        raise wrong_usage(f"{what} {text}: expected a duration above 0 and up to {LONGEST.days} days.")
    return span


def one_of(what: str, text: str, known: Sequence[str]) -> str:
    """Return the known word that a text means, in any case and with any sign between its parts. Raises InputError."""
    from airflow_poison.values.texts import folded, nearest

    words = {folded(word): word for word in known}
    if folded(text) in words:
        return words[folded(text)]
    raise wrong_usage(f"{what} {_shown(text)}: expected one of {', '.join(known)}; the nearest is {nearest(text, known)}.")


def now() -> datetime:
    """Return the instant that durations before now are of."""
    return datetime.now(UTC)


def importable_here() -> None:
    """Let what is in the current folder be imported, as ``python -m`` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def imported(flag: str, name: str, example: str) -> object:
    """Return what ``MODULE:NAME`` names. Raises InputError."""
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise wrong_usage(f"{flag} {name}: expected MODULE:NAME, for example {example}.")
    try:
        with others_on_stderr():
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a module raises that is imported
        raise wrong_usage(
            f"{flag} {name}: importing the module {module_name!r} failed with {type(error).__name__}: {error}. "
            "Modules of the current folder and of --py-files are found; install others, or add their folder to PYTHONPATH."
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            where = getattr(found, "__file__", None) or "built in"
            raise wrong_usage(f"{flag} {name}: the module {module_name!r} ({where}) has no {attribute!r}. Correct the name, or define it there.")
        found = getattr(found, part)
    return found


def since(text: str, now: datetime, flag: str = "--since") -> datetime:
    """Return the instant of ``2h`` (before now) or ``2013-01-01T12:00``, in people's time zone when it does not say. Raises InputError."""
    from airflow_poison.cli.terminal import localized
    from airflow_poison.values.clock import EXAMPLES, read_duration

    span = read_duration(text)
    try:
        at = now - span if span is not None else datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise wrong_usage(f"{flag} {_shown(text)}: expected an instant such as 2013-01-01T12:00Z, or a duration such as {EXAMPLES}.") from error
    return localized(at)


def started(text: str) -> datetime:
    """Return the instant at which a simulation starts. Raises InputError."""
    from airflow_poison.cli.terminal import localized

    try:
        return localized(datetime.fromisoformat(text))
    except ValueError as error:
        raise wrong_usage(f"--start {_shown(text)}: expected an instant such as 2026-03-29T01:30 or 2026-03-29T00:30Z.") from error


def _shown(text: str) -> str:
    """Return a text that was typed so that it can be seen."""
    return text if text.strip() else repr(text)


def system_of(system: str | None, *values: list[str] | None) -> str | None:
    """Return SYSTEM, also when it stands behind an option that takes several values, and was parsed as one of them."""
    for given in values:
        if system is None and given and len(given) > 1 and not set(given[-1]) & set("=:"):
            return given.pop()
    return system


def pairs(flag: str, given: Iterable[str]) -> dict[str, str]:
    """Return what ``NAME=VALUE`` says, by name. Raises InputError."""
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or not name:
            raise wrong_usage(f"{flag} {text}: expected NAME=VALUE.")
        if name in found:
            raise wrong_usage(f"{flag} {text}: {name} was given twice.")
        found[name] = value
    return found


def outage(given: Sequence[str] | None) -> Outage | None:
    """Return what ``--outage`` says; None where it is not there. Raises InputError, SettingError."""
    if given is None:
        return None
    from airflow_poison.rules.outage import Outage

    read: dict[str, object] = {}
    for name, text in pairs("--outage", given).items():
        if name == "every":
            read[name] = duration("--outage every", text).total_seconds()
            continue
        try:
            read[name] = json.loads(text)
        except ValueError:
            read[name] = text
    return Outage.from_dict(read)


def duration(flag: str, text: str) -> timedelta:
    """Return a duration. Raises InputError."""
    from airflow_poison.values.clock import EXAMPLES, read_duration

    span = read_duration(text)
    if span is None:
        raise wrong_usage(f"{flag} {text}: expected a duration such as {EXAMPLES}.")
    return span


def action(text: str) -> Action:
    """Return what ``AT:VERB``, ``AT:VERB:MESSAGE`` or ``AT:alter:NAME=VALUE,...`` says. Raises InputError."""
    from airflow_poison.rules.simulation.scripted_host import Action, Verb
    from airflow_poison.values.texts import nearest

    at, _, rest = text.partition(":")
    word, _, what = rest.partition(":")
    verb = word.strip().lower().replace("-", "_")
    if verb not in set(Verb):
        hint = f"; the nearest is {nearest(verb, Verb)}" if verb else ""
        raise wrong_usage(f"--action {text}: expected AT:VERB or AT:VERB:WHAT, and one of {', '.join(Verb)} as VERB{hint}.")
    span = duration(f"--action {text}:", at)
    if verb == Verb.ALTER:
        if not what:
            raise wrong_usage(f"--action {text}: expected AT:alter:NAME=VALUE, with more of them behind commas.")
        return Action(span, Verb.ALTER, settings=pairs(f"--action {text}:", what.split(",")))
    return Action(span, Verb(verb), message=what.strip())


def policy_json(place: str) -> dict[str, object]:
    """Return the JSON object of a file, or of standard input for ``-``. Raises InputError."""
    from airflow_poison.values import json_text

    try:
        found = json_text.natural_values(sys.stdin.read() if place == "-" else Path(place).read_bytes())
    except OSError as error:
        raise wrong_usage(f"--policy-json {place}: {error.strerror or error}.") from error
    except json_text.JsonError as error:
        raise wrong_usage(f"--policy-json {place}: no JSON: {error}.") from error
    if not isinstance(found, dict):
        raise wrong_usage(f"--policy-json {place}: expected a JSON object of settings.")
    return found


def given_policy(args: Namespace) -> Policy | None:
    """Return it; None when none of the options is there: then the recorded one rules. Says its warnings. Raises InputError, SettingError."""
    if args.system is None and not args.set and args.policy_json is None:
        return None
    with noted_warnings():
        return policy_of(args, args.system, "--system is missing: a whole policy is recorded, and 'alter' changes some settings of the recorded one.")


def policy_of(args: Namespace, system: str | None, missing: str) -> Policy:
    """Return the policy of a system, --policy-json and --set; the file may name the system, too. Raises InputError and SettingError.

    :param missing: the error text when neither does.
    """
    from airflow_poison.rules.described import system_named, typed_policy

    stored = policy_json(args.policy_json) if args.policy_json else {}
    named = stored.pop("system", None)
    system = system or named  # type: ignore[assignment]  # looked at below
    if not isinstance(system, str):
        raise wrong_usage(missing)
    if named is not None and system_named(str(named)) != system_named(system):
        raise wrong_usage(f"--policy-json {args.policy_json}: these are settings of {named}, not of {system}.")
    return typed_policy(system, stored, pairs("--set", args.set or []))


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
_NAMES = tuple(argument.flags[0][2:].replace("-", "_") for argument in SELECTION)


def is_selected(args: Namespace) -> bool:
    """Whether one of the options is given."""
    return any(getattr(args, name) is not None for name in _NAMES)


def selection(args: Namespace) -> Selection:
    """Return what the options select; nothing given: all poison. Raises InputError, SettingError."""
    from airflow_poison.desk.selection import Selection

    at = now()
    place = args.sub_queue or (ANY if args.ids is not None else "poison")
    given = {name: getattr(args, name) for name in ("error", "error_type", "text", "group", "message_type", "message_id", "where")}
    for name, text in given.items():
        if text is not None and not text.strip():
            raise wrong_usage(f"--{name.replace('_', '-')} {text!r}: expected a text; an empty variable of the shell would select everything.")
    found = {name: text for name, text in given.items() if text is not None}
    wanted = one_of("--sub-queue", place, (*PLACES, ANY))
    return Selection.from_dict(
        found
        | {
            "sub_queue": None if wanted == ANY else wanted,
            "since": None if args.since is None else since(args.since, at),
            "until": None if args.until is None else since(args.until, at, "--until"),
            "counts": list(args.count or ()),
            "properties": pairs("--property", args.property or ()),
            "lookup_ids": args.ids,
        }
    )
