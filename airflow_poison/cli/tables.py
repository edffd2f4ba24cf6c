"""What commands print for people: queues, messages, services, conversations, and plans: what would be done, what was done, how far it is."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from airflow_poison.cli import terminal
from airflow_poison.cli.terminal import block, cuttable, line, one_line, screen, table
from airflow_poison.passes.browse import MOST_BODY_BYTES, MessageRow, QueueOverview
from airflow_poison.rules import policy_from_dict
from airflow_poison.rules.queue_disabling import BINARY, EMPTY, Printed
from airflow_poison.store.control import NOT_BEFORE_RESTART, QueueState
from airflow_poison.values import json_text
from airflow_poison.values.errors import SettingError
from airflow_poison.values.schema import DEFAULT_PRIORITY, SubQueue, place_name
from airflow_poison.values.texts import counted

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_poison.desk.actions import PlanAction
    from airflow_poison.desk.plans import PlanView, Sample
    from airflow_poison.dialogs.services import Contract, Service
    from airflow_poison.passes.conversations import ConversationRow, UnsentMessage
    from airflow_poison.passes.dialogs import ActResult
    from airflow_poison.passes.history import History
    from airflow_poison.passes.inspect import InspectResult
    from airflow_poison.store.parking import Behind
    from airflow_poison.values.events import Event


_ALWAYS = (SubQueue.MAIN, SubQueue.RETRY, SubQueue.POISON)
_STYLES = {QueueState.ENABLED.value: "green", QueueState.DISABLED.value: "bold red"}


def print_queues(queues: Sequence[QueueOverview], unreadable: Iterable[str] = ()) -> None:
    """Print a row for each queue.

    :param unreadable: the names of queues that cannot be read.
    """
    out = screen()
    places = [place for place in SubQueue if place in _ALWAYS or any(queue.sub_queues[place].messages for queue in queues)]
    outbox = ["outbox"] * any(queue.outbox for queue in queues)
    unsent = ["unsent"] * any(queue.unsent for queue in queues)
    expired = ["expired\nclaims"] * any(queue.expired_claims for queue in queues)
    numbers = [*(place.value for place in places), *outbox, *unsent, *expired]
    rows = table("queue", "state", *numbers, "oldest", "next due", right=numbers)
    for queue in queues:
        counts = [f"{queue.sub_queues[place].messages:,}" for place in places]
        rare = [f"{queue.outbox:,}"] * len(outbox) + [f"{queue.unsent:,}"] * len(unsent) + [str(queue.expired_claims)] * len(expired)
        times = (terminal.age(queue.oldest_at, queue.at), terminal.due(queue.next_due_at, queue.at))
        rows.add_row(Text(queue.queue, "bold"), _state(queue), *counts, *rare, *times)
    for name in unreadable:
        rows.add_row(Text(one_line(name), "bold"), Text("unreadable", "bold red"))
    out.print(rows)
    for queue in queues:
        if queue.blocked_until is not None:
            line(out, f"{queue.queue} is blocked{_blocked(queue)}")


def _blocked(queue: QueueOverview) -> str:
    return f" by message {queue.blocked_by}: {queue.obstacle}" if queue.obstacle else f" by message {queue.blocked_by}"


def _state(queue: QueueOverview) -> Text:
    """Return the state that a row has room for: the endpoint's own, else the state of the reader of the poison sub-queue."""
    if queue.state != QueueState.ENABLED:
        return Text(queue.state, _STYLES.get(queue.state, "bold red"))
    if queue.poison_state != QueueState.ENABLED:
        return Text(f"poison {queue.poison_state}", "bold red")
    if queue.outage is not None or queue.poison_outage is not None:
        return Text("outage" if queue.outage is not None else "poison outage", "bold yellow")
    return Text("blocked", "bold yellow") if queue.blocked_until is not None else Text(queue.state, _STYLES[queue.state])


def print_queue(queue: QueueOverview) -> None:
    """Print a queue's state, settings, depths and claims."""
    out = screen()
    endpoints = [(queue.queue, queue.state, queue.reason)]
    if queue.poison_state != QueueState.ENABLED:
        endpoints.append((place_name(queue.queue, SubQueue.POISON), queue.poison_state, queue.poison_reason))
    for endpoint, state, reason in endpoints:
        line(out, (endpoint, "bold"), ": ", (state, _STYLES.get(state, "bold red")), f": {one_line(reason)}" if reason else "")
    if queue.blocked_until is not None:
        restart = queue.blocked_until == NOT_BEFORE_RESTART
        until = "its broker is restarted or the message is removed" if restart else terminal.instant(queue.blocked_until)
        line(out, (f"blocked until {until}{_blocked(queue)}", "bold yellow"))
    for place, outage in ((SubQueue.MAIN, queue.outage), (SubQueue.POISON, queue.poison_outage)):
        if outage is not None:
            since, probe = terminal.instant(outage.since), terminal.instant(outage.next_probe_at)
            endpoint = queue.queue if place is SubQueue.MAIN else place_name(queue.queue, place)
            what = f"{endpoint}: outage since {since}, no poison; failures {outage.fingerprint}, next probe from {probe} on"
            line(out, (what, "bold yellow"))
    line(out, _policy(queue.policy))
    if queue.counters:
        line(out, "counters: ", ", ".join(f"{name} {count}" for name, count in queue.counters.items()))
    out.print()
    out.print(_depths(queue))
    if queue.outbox:
        line(out, f"{terminal.messages(queue.outbox)} in the outbox, on the way to other queues; the next pass sends them on.")
    for source in queue.sources:
        count = f"{terminal.messages(source.messages)} taken" + (f", {source.malformed:,} malformed" if source.malformed else "")
        line(out, f"source {source.source}: {source.position}; {count}, last {terminal.instant(datetime.fromisoformat(source.taken_at))}")
    for claim in queue.claims:
        ended = "given up" if claim.given_up else "expired"
        when = f"{ended} {terminal.about(queue.at - claim.expires_at)} ago, the next receive takes it over" if claim.expired else "being received"
        line(out, f"claim {claim.key}: {terminal.messages(claim.messages)} of {place_name(queue.queue, SubQueue(claim.sub_queue))}, {when}")


def print_unsent(messages: Iterable[UnsentMessage]) -> None:
    """Print for which services messages wait here, and why, as ``sys.transmission_queue`` says it."""
    for (service, status), number in Counter((message.to_service, message.status) for message in messages).items():
        text = status or "the next pass of either side carries what waits"
        line(screen(), f"unsent: {terminal.messages(number)} for service {one_line(service)}: {one_line(text)}.")


def print_behind(behind: Behind) -> None:
    """Print how many messages wait behind earlier ones of their groups, where some do."""
    if behind.messages:
        waiting = counted(behind.messages, "message of main waits", "messages of main wait")
        line(screen(), f"{waiting} behind earlier ones of {counted(behind.groups, 'group')} (park_group).")


def _policy(settings: Mapping[str, object]) -> str:
    from airflow_poison.cli.simulation import headline

    try:
        return headline(policy_from_dict(settings))
    except SettingError as error:
        return f"no settings that this version knows: {error}"


def _depths(queue: QueueOverview) -> object:
    claimed = ["claimed"] * any(depth.claimed for depth in queue.sub_queues.values())
    rows = table("sub-queue", "messages", *claimed, "due", "oldest", "next due", right=["messages", "claimed", "due"])
    for place, depth in queue.sub_queues.items():
        if place in _ALWAYS or depth.messages:
            due = f"{depth.due:,}" if place in {SubQueue.RETRY, SubQueue.POSTPONED} else ""
            times = (terminal.age(depth.oldest_enqueued_at, queue.at), terminal.due(depth.next_due_at, queue.at))
            rows.add_row(place_name(queue.queue, place), f"{depth.messages:,}", *[f"{depth.claimed:,}"] * len(claimed), due, *times)
    return rows


def print_messages(queue: str, messages: Sequence[MessageRow], more: Mapping[SubQueue, int], now: datetime, *, bodies: bool) -> None:
    """Print a row for each message, or, with bodies, its row and its body."""
    if not messages:
        return
    out = screen()
    out.print()
    if bodies:
        for message in messages:
            _print_summary(out, queue, message, now)
            _print_body(out, message)
    else:
        out.print(_rows(queue, messages, now))
    for place, count in more.items():
        line(out, f"{terminal.messages(count)} more in {place_name(queue, place)}; --limit shows more.")


def _rows(queue: str, messages: Sequence[MessageRow], now: datetime) -> object:
    prior = ["priority"] * any(message.priority != DEFAULT_PRIORITY for message in messages)
    groups = ["group"] * any(message.group_id for message in messages)
    numbers = ["lookup\nid", *prior, "abort\ncount", "move\ncount"]
    rows = table(*numbers[:1], "sub-queue", *groups, *numbers[1:], "age", "last error", right=numbers, cut="last error")
    for message in messages:
        rows.add_row(
            str(message.lookup_id),
            place_name(queue, SubQueue(message.sub_queue)),
            *[one_line(message.group_id or "")] * len(groups),
            *[str(message.priority)] * len(prior),
            str(message.abort_count),
            str(message.move_count),
            terminal.age(message.enqueued_at, now),
            cuttable(message.reason or ""),
        )
    return rows


def _print_summary(out: Console, queue: str, message: MessageRow, now: datetime) -> None:
    facts = [f"abort count {message.abort_count}", f"move count {message.move_count}", f"sent {terminal.age(message.enqueued_at, now)} ago"]
    where = f" in {place_name(queue, SubQueue(message.sub_queue))}: {', '.join(facts)}{'; ' if message.reason else ''}"
    line(out, (f"message {message.lookup_id}", "bold"), where, one_line(message.reason or ""))


def print_whole(
    queue: str,
    messages: Sequence[MessageRow],
    now: datetime,
    *,
    most_body: int | None = MOST_BODY_BYTES,
    printed: Callable[[MessageRow], Printed | None] = lambda _message: None,
) -> None:
    """Print everything about messages.

    :param most_body: so many bytes of each body; None: all.
    :param printed: what an inspection of Service Broker prints in place of the body; None: the body.
    """
    out = screen()
    for message in messages:
        out.print()
        line(out, (f"message {message.lookup_id}", "bold"), f" in {place_name(queue, SubQueue(message.sub_queue))}")
        _print_facts(out, _facts(message, now))
        for text in ((message.last_error or {}).get("trace") or "").splitlines():
            line(out, (block(text), "dim"), indent=4)
        if (printed_text := printed(message)) is None:
            _print_body(out, message, most_body)
        else:
            for text in str(printed_text).splitlines():
                line(out, block(text), indent=4)


def _print_facts(out: Console, facts: Iterable[tuple[str, str]]) -> None:
    for name, value in facts:
        line(out, (f"{name}: ", "dim"), one_line(value), indent=2)


def _facts(message: MessageRow, now: datetime) -> Iterator[tuple[str, str]]:
    counts = (f"{name.replace('_', ' ')} {getattr(message, name)}" for name in ("abort_count", "move_count", "crash_count", "priority"))
    yield "counts", ", ".join(counts)
    for name in ("message_id", "group_id", "conversation_id", "message_type"):
        if value := getattr(message, name):
            yield name.replace("_", " "), str(value)
    for name, word in (("enqueued_at", "sent"), ("due_at", "due"), ("expires_at", "expires")):
        at: datetime | None = getattr(message, name)
        if at is not None:
            yield word, f"{terminal.instant(at)} ({f'{terminal.about(now - at)} ago' if at <= now else f'in {terminal.about(at - now)}'})"
    for name, value in message.properties.items():
        yield f"property {name}", str(value)
    error = message.last_error or {}
    text = f"{error['type']}: {error.get('message') or ''}" if error.get("type") else ""
    if text:
        yield "last error", text
    if message.reason and not text.startswith(message.reason):
        yield "reason" if text else "last error", message.reason


def _print_body(out: Console, message: MessageRow, most: int | None = MOST_BODY_BYTES) -> None:
    """Print a body as an inspection of Service Broker does (spec SB-27): text, or hexadecimal digits."""
    if not message.body:
        line(out, (EMPTY, "dim"), indent=2)
        return
    text, cut = message.shown(most), most is not None and len(message.body) > most
    facts = [terminal.size(len(message.body)), *([f"the first {terminal.size(most or 0)} of it"] if cut else [])]
    facts += [f"XML in {text.encoding}"] if text is not None and text.encoding else []
    line(out, ("body", "dim"), f" ({', '.join(facts)})", ":", indent=2)
    if text is None:
        line(out, BINARY, indent=4)
        line(out, f"0x{message.body[:most].hex().upper()}", indent=4)
    else:
        for each in text.text.splitlines() or [""]:
            line(out, block(each), indent=4)


def print_inspected(seen: InspectResult, now: datetime, printed: Callable[[MessageRow], Printed | None]) -> None:
    """Print what an inspection saw; the body of a message of a dialog as its message type's validation says (spec SB-27)."""
    out = screen()
    line(out, (seen.queue, "bold"), ": ", (seen.state, _STYLES.get(seen.state, "bold red")), f" ({seen.mode})")
    print_whole(seen.queue, seen.messages, now, printed=printed)
    if seen.more:
        line(out, f"{terminal.messages(seen.more)} more; --every shows up to 100 of a conversation.")


def print_events(history: History) -> None:
    """Print a timeline."""
    out = screen()
    if history.earlier:
        line(out, f"{history.earlier:,} earlier events; --limit shows more.")
    counts = ["abort\ncount", "move\ncount"]
    zone = " UTC" if terminal.is_utc() else ""
    rows = table("time (UTC)" if zone else "time", "event", "message", *counts, "details", right=["message", *counts], cut="details")
    for event in history.events:
        number = "" if event.lookup_id is None else str(event.lookup_id)
        numbers = (str(event.abort_count), str(event.move_count)) if number else ("", "")
        rows.add_row(terminal.instant(event.at).removesuffix(zone), event.type.value, number, *numbers, cuttable(_details(history.queue, event)))
    out.print(rows)


def _details(queue: str, event: Event) -> str:
    """Return the facts of an event in a line; a document is too long for one, and what is empty says nothing."""
    facts = {name: value for name, value in event.details.items() if value and name != "document"}
    place = facts.pop("place", "")
    shown = place_name(queue, SubQueue(place)) if place in set(SubQueue) else place
    return ", ".join([*([f"to {shown}"] if shown else []), *(f"{name}: {value}" for name, value in facts.items())])


_STATES = {
    "SO": "started outbound",
    "SI": "started inbound",
    "CO": "conversing",
    "DI": "disconnected inbound: the partner has ended it",
    "DO": "disconnected outbound: this side has ended it",
    "ER": "error",
    "CD": "closed",
}


def print_services(found: Sequence[tuple[str, Service]]) -> None:
    """Print a row for each contract of each service."""
    out, rows = screen(), table("service", "queue", "contract", "message types", cut="message types")
    for queue, service in found:
        for number, contract in enumerate(service.contracts.values()):
            names = (one_line(service.name), one_line(queue)) if not number else ("", "")
            rows.add_row(Text(names[0], "bold"), names[1], one_line(contract.name), cuttable(_types(contract)))
    out.print(rows)


def _types(contract: Contract) -> str:
    types = contract.message_types
    schemas = {name: "" if types[name].schema is None else " with a JSON Schema" for name in types}
    return ", ".join(f"{name} ({who}, {types[name].validation}{schemas[name]})" for name, who in contract.senders.items())


def print_conversations(rows: Sequence[ConversationRow], now: datetime) -> None:
    """Print a row for each conversation endpoint."""
    made = table("conversation", "state", "service", "partner", "waiting", "timer", "lifetime", "error", right=["waiting"], cut="error")
    for row in rows:
        made.add_row(
            row.handle,
            row.state,
            one_line(row.service),
            one_line(row.far_service),
            f"{sum(row.waiting.values()):,}",
            terminal.due(row.dialog_timer, now),
            terminal.due(row.lifetime, now),
            cuttable("" if row.error is None else f"{row.error[0]} {row.error[1]}"),
        )
    screen().print(made)


def print_conversation(row: ConversationRow, now: datetime) -> None:
    """Print everything about a conversation endpoint."""
    out = screen()
    line(out, (f"conversation {row.handle}", "bold"), f": {row.state}, {_STATES[row.state]}")
    _print_facts(out, _conversation_facts(row, now))


def _conversation_facts(row: ConversationRow, now: datetime) -> Iterator[tuple[str, str]]:
    yield "of both sides", row.conversation_id
    yield "side", f"{'initiator' if row.is_initiator else 'target'}, service {row.service}"
    yield "partner", row.far_service
    yield "contract", row.contract
    yield "group", row.group_id
    yield "priority", str(row.priority)
    yield "sent", f"{row.sent:,}"
    yield "waiting", ", ".join(f"{count:,} of type {kind}" for kind, count in row.waiting.items()) or "nothing"
    for name, at in (("timer", row.dialog_timer), ("lifetime", row.lifetime)):
        if at is not None:
            yield name, f"{terminal.instant(at)} ({terminal.due(at, now)})"
    if row.error is not None:
        yield "error", f"{row.error[0]} {row.error[1]}"
    if row.failures:
        yield "failures", str(row.failures)


def waiting(done: ActResult) -> list[str]:
    """Return the sentence that says what stays at this side; none where nothing does."""
    return [f"Waits at this side until a disabled queue is enabled: {terminal.messages(done.waiting)}."] if done.waiting else []


_GROUPS, _DEEPEST, _UNFIT, _SAMPLES = 15, 50, 5, 3
_WORDS = {
    "put_back": "put back into main",
    "move": "move to {target}",
    "send_to": "send to {target}",
    "remove": "remove for good",
    "edit": "edit",
}


def action_text(action: PlanAction) -> str:
    """Return an action in words."""
    words = _WORDS[action.verb.value].format(target=action.target or "the queue that each came from")
    changes = []
    if action.patch is not None:
        changes.append(f"patch {json_text.written(action.patch)}")
    if action.function:
        changes.append(f"function {action.function}")
    if action.body is not None:
        changes.append("a new body")
    changes += [f"without property {name}" if value is None else f"{name}={value}" for name, value in action.properties.items()]
    return f"{words}: {', '.join(changes)}" if changes else words


def print_plan(view: PlanView) -> None:
    """Print what a plan would do, or has done: numbers, groups, samples."""
    out = screen()
    name = f"Plan {view.plan}" if view.plan else "Plan"
    line(out, (name, "bold"), f": {action_text(view.action)}, {terminal.messages(view.messages)} of {view.queue} {view.selection}.")
    if view.claimed:
        line(out, f"{terminal.messages(view.claimed)} of them are claimed by passes; these wait until the passes have ended.")
    if view.plan:
        line(out, f"It is {progress(view)}; {view.who} on {terminal.instant(view.at)}" + (f": {one_line(view.reason)}" if view.reason else "") + ".")
    if view.canary is not None:
        line(out, f"Canary: {terminal.messages(view.canary.messages)} first; the others follow when {view.canary.share:.0%} were settled.")
    if view.groups:
        rows = table("group", "messages", "error", right=["messages"], cut="error")
        for group in view.groups[:_GROUPS]:
            error = f"{group.type}: {one_line(group.text)}" if group.type else "(no failure)"
            rows.add_row(group.error or "-", f"{group.messages:,}", cuttable(error))
        out.print(rows)
        if len(view.groups) > _GROUPS:
            line(out, f"There are more groups; --output json has the {len(view.groups)} largest.")
    for sample in view.samples[: min(max(len(view.groups), 1), _SAMPLES)]:  # one of each group comes first
        _print_sample(sample)
    for each in unfit(view):
        line(out, each)


def _print_sample(sample: Sample) -> None:
    """Print a message of a plan; of an edit, the difference of its body."""
    out = screen()
    line(out, f"message {sample.lookup_id} in {sample.sub_queue}" + (f": {one_line(sample.reason)}" if sample.reason else ""))
    if sample.unfit:
        line(out, (f"stays as it is: {one_line(sample.unfit)}", "yellow"), indent=2)
    elif sample.before is not None and sample.after is not None:
        for each in _differences(sample.before, sample.after):
            out.print(Text(f"  {each}", {"+": "green", "-": "red"}.get(each[:1], "")), soft_wrap=True)


def _differences(before: str, after: str) -> list[str]:
    """Return the lines that differ; JSON is compared in its pretty form."""
    found = list(difflib.unified_diff(_lines(before), _lines(after), n=1, lineterm=""))
    return [each for each in found if not each.startswith(("---", "+++", "@@"))] or ["the body stays as it is"]


def _lines(text: str) -> list[str]:
    with suppress(json_text.JsonError):
        return list(_pretty(json_text.tree(text)))
    return block(text).splitlines()


def _pretty(value: object, before: str = "", behind: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the lines of a JSON value with one name or element in each; numbers and names as they are."""
    indent = "  " * depth
    if not isinstance(value, list) or not value or depth > _DEEPEST:
        yield block(f"{indent}{before}{json_text.written(value)}{behind}")
        return
    ends = "{}" if isinstance(value, json_text.Pairs) else "[]"
    yield block(f"{indent}{before}{ends[0]}")
    for number, each in enumerate(value):
        name, inner = (f"{json_text.written(each[0])}: ", each[1]) if isinstance(value, json_text.Pairs) else ("", each)
        yield from _pretty(inner, name, "," * (number < len(value) - 1), depth + 1)
    yield f"{indent}{ends[1]}{behind}"


def progress(view: PlanView) -> str:
    """Return the state of a plan with its numbers."""
    skipped = f", {view.skipped:,} skipped that have changed since or that it does not fit" if view.skipped else ""
    return f"{view.state}: {view.done:,} of {view.messages:,} done{skipped}"


def unfit(view: PlanView) -> Iterator[str]:
    """Yield a sentence for messages that a plan could not be done to; of many the first ones."""
    for each in view.unfit[:_UNFIT]:
        yield f"Message {each.lookup_id} stays as it is: {each.why}."
    if more := view.unfit[_UNFIT:]:
        yield f"{terminal.messages(len(more))} more stay as they are; 'plans {view.queue} {view.plan} --output json' has them."


def print_plans(views: Sequence[PlanView], now: datetime) -> None:
    """Print a row for each plan."""
    rows = table("plan", "state", "done", "messages", "action", "who", "age", "reason", right=["done", "messages"], cut="reason")
    for view in views:
        who = view.who.partition("@")[0] if view.who.startswith("shell:") else view.who
        cells = (view.plan, view.state, f"{view.done:,}", f"{view.messages:,}", view.action.verb.value, one_line(who), terminal.age(view.at, now))
        rows.add_row(*cells, cuttable(view.reason))
    screen().print(rows)


@contextmanager
def progress_bar(view: PlanView, what: str) -> Iterator[Callable[[PlanView], None]]:
    """Give what shows a plan's progress on a terminal: how much is done, how fast, and when it will end. Elsewhere nothing is shown."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=view.messages, completed=view.done, state=view.state)

        def show(now: PlanView) -> None:
            bar.update(task, completed=now.done, state=now.state)

        yield show
