"""``airflow poison return``, ``move``, ``enable``, ``disable``, ``alter``, ``restart`` and ``maintain``: one verb each."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from airflow_poison.cli import arguments, humanly, values
from airflow_poison.cli.looking import write_json
from airflow_poison.cli.screen import line, one_line, screen
from airflow_poison.cli.stores import opened_queue, opened_store
from airflow_poison.cli.telling import check_output, command, noted_warnings
from airflow_poison.core.clock import SystemClock
from airflow_poison.core.errors import InputError
from airflow_poison.core.store.control import QueueState
from airflow_poison.core.texts import folded

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    class Result(Protocol):
        """What a verb returns."""

        def to_dict(self) -> dict[str, object]:
            """Return plain values."""
            ...


_ORIGIN, _ALL = "origin", "all"


@command
def return_due(args: Namespace) -> None:
    """End the retry cycle of what is due."""
    from airflow_poison.core.passes.due import return_due as verb
    from airflow_poison.core.policies import policy_from_dict

    output, table, clock = check_output(args.output), opened_queue(args), SystemClock()
    order = policy_from_dict(table.snapshot().control.policy).return_order
    done = verb(table, clock, return_order=order)
    also = f", and {humanly.messages(done.postponed)} that a handler had postponed" if done.postponed else ""
    waiting = f"{humanly.messages(done.waiting)} wait in retry" if done.waiting != 1 else "1 message waits in retry"
    if done.next_due_at is not None:
        waiting = f"{waiting}, the next is due {humanly.due(datetime.fromisoformat(done.next_due_at), clock.now())}"
    _print(output, done.to_dict(), [f"Returned {humanly.messages(done.returned)} of {table.name} to main{also}; {waiting}."])


@command
def move(args: Namespace) -> None:
    """Move messages, all or none."""
    output = check_output(args.output)
    everything = args.lookup_ids == [_ALL]
    numbers = [] if everything else values.lookup_ids(args.lookup_ids)
    if args.to is not None and args.to_queue is not None:
        raise InputError("--to and --to-queue: expected one of them.")
    if everything and (args.to not in {None, "main"} or args.to_queue is not None):
        raise InputError("all: expected with --to main; name the messages that go elsewhere.")
    to = _moved(args, numbers)
    moved = sum(to.values())
    where = ", ".join(f"{count:,} to {place}" for place, count in to.items()) or "none"
    _print(output, {"queue": args.queue, "moved": moved, "to": dict(to)}, [f"Moved {humanly.messages(moved)} of {args.queue}: {where}."])


def _moved(args: Namespace, numbers: Sequence[int]) -> Mapping[str, int]:
    from airflow_poison.core.passes.move import move as verb
    from airflow_poison.core.passes.move import put_back
    from airflow_poison.core.passes.relay import send_to

    clock, store = SystemClock(), opened_store(args)
    table = opened_queue(args)
    if not numbers:
        return {"main": put_back(table, clock)}
    if args.to_queue is not None:
        return send_to(table, store, clock, numbers, args.to_queue).to
    to = values.one_of("--to", args.to or "main", ("main", "poison", _ORIGIN))
    return send_to(table, store, clock, numbers).to if to == _ORIGIN else {to: verb(table, clock, numbers, to)}


@command
def enable(args: Namespace) -> None:
    """Let a queue receive again."""
    from airflow_poison.core.passes.alter import enable as verb
    from airflow_poison.core.passes.recovery import Ending

    output, table, clock = check_output(args.output), opened_queue(args), SystemClock()
    done = verb(table, clock)
    Ending(table, clock, opened_store(args)).carry()
    was = (
        f"; it was {done.before}" + (f": {one_line(done.reason)}" if done.reason else "") if done.before != QueueState.ENABLED else "; it was already"
    )
    _print(output, done.to_dict(), [f"Queue {done.queue} is enabled{was}."])


@command
def disable(args: Namespace) -> None:
    """Set a queue to OFF."""
    from airflow_poison.core.passes.alter import disable as verb

    output, done = check_output(args.output), verb(opened_queue(args), SystemClock(), args.reason or "")
    again = "; it was already, and its reason stays" if done.before == QueueState.DISABLED else ""
    told = [f"Queue {done.queue} is disabled{again}. What is sent to it waits until it is enabled."]
    if done.receiving:
        told.append(f"A pass still finishes {humanly.messages(done.receiving)} that it has claimed.")
    _print(output, done.to_dict(), told)


@command
def alter(args: Namespace) -> None:
    """Change settings that are recorded in a queue."""
    from airflow_poison.core.passes.alter import alter as verb
    from airflow_poison.core.policies import policy_class
    from airflow_poison.core.policies.described import system_named, typed_settings

    output = check_output(args.output)
    typed = arguments.pairs("--set", args.set or [])
    if not typed and args.system is None:
        raise InputError("--set is missing: expected NAME=VALUE. 'show' lists the recorded settings, 'policies SYSTEM' all there are.")
    if "system" in map(folded, typed):
        raise InputError("--set system=…: expected with --system SYSTEM; the settings of the old one do not stay.")
    other = None if args.system is None else system_named(args.system)
    table = opened_queue(args)
    system = policy_class(other or str(table.snapshot().control.policy["system"]))
    with noted_warnings():
        done = verb(table, SystemClock(), settings=typed_settings(system, typed), system=other)
    told = [f"{name}: {before} -> {after}" for name, (before, after) in done.changed.items()]
    _print(
        output, done.to_dict(), [*told, f"They hold when {done.queue} is received next."] if told else [f"{done.queue} had these settings already."]
    )


@command
def restart(args: Namespace) -> None:
    """Restart what the queue's system restarts."""
    from airflow_poison.core.passes.restart import restart as verb
    from airflow_poison.core.policies.opening import Restart

    output, what = check_output(args.output), Restart(values.one_of("WHAT", args.what, list(Restart)))
    done = verb(opened_queue(args), SystemClock(), what)
    told = [f"Restarted the {done.what} of {done.queue}; its endpoint was {done.before} and is {done.after}."]
    if done.forgotten or done.returned:
        told.append(f"{humanly.messages(done.forgotten)} with other counts, {humanly.messages(done.returned)} no longer blocked.")
    _print(output, done.to_dict(), told)


@command
def maintain(args: Namespace) -> None:
    """Keep a queue's folder small and its log short."""
    from airflow_poison.core.passes.maintain import RETENTION
    from airflow_poison.core.passes.maintain import maintain as verb

    output = check_output(args.output)
    retention = RETENTION if args.retention is None else arguments.duration("--retention", args.retention)
    done = verb(opened_queue(args), SystemClock(), store=opened_store(args), retention=retention)
    told = [
        f"Joined {done.compacted.get('files', 0):,} small files into {done.compacted.get('into', 0):,}.",
        f"Removed {sum(done.removed.values()):,} files ({humanly.size(done.freed_bytes)}); {sum(done.kept.values()):,} stay for now.",
        f"Versions from {done.oldest_version:,} on can still be read.",
    ]
    if done.relayed:
        told.append(f"Sent {humanly.messages(done.relayed)} on that a killed pass had left.")
    if done.expired_claims:
        told.append(f"{len(done.expired_claims)} expired claims: the next receive takes them over.")
    _print(output, done.to_dict(), told)


def _print(output: str, plain: Mapping[str, object], told: Sequence[str]) -> None:
    if output == "json":
        write_json(dict(plain))
        return
    out = screen()
    for each in told:
        line(out, each)
