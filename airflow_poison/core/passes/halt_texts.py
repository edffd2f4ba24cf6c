"""A halted endpoint in words: what happened, and what people do next. For alerts and for the error of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from airflow_poison.core.policies.decisions import Halted

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORGETS = "Msmq3"
"""The system whose listener gives a message fresh attempts when it is opened again (spec M3-10)."""


def what_halted(how: Halted, endpoint: str, lookup_id: int | None, error: str, facts: Mapping[str, str]) -> str:
    """Say which message halted an endpoint and why, one line.

    :param endpoint: ``orders``, or ``orders;poison``.
    :param lookup_id: the message; None: the endpoint ended after a commit.
    :param error: the message's last error, one line; empty when it is not known.
    :param facts: the details of the halt, as the policy gave them.
    """
    if lookup_id is None:
        happened = f"Queue {endpoint!r} was halted ({how}) after a commit."
    else:
        happened = f"Message {lookup_id} of queue {endpoint!r} halted it ({how}): {(error or 'its delivery attempts are exhausted').rstrip('.')}."
    return " ".join([happened, *(f"{said.rstrip('.')}." for said in _said(facts))])


def what_to_do_when_halted(how: Halted, queue: str, lookup_id: int | None, system: str = "") -> str:
    """Say what to do about a halted endpoint, one line.

    :param system: the policy's, where it is known.
    """
    enable = f"enable the queue with QueueHook().enable({queue!r})"
    out = f"take the message out with QueueHook().remove({queue!r}, {lookup_id})"
    steps: tuple[str, ...]
    match how:
        case Halted.DISABLED:
            steps = (f"look at it with QueueHook().inspect({queue!r}, mode='browse')", f"mend the cause or {out}")
            then = "Until then nothing is received, and what is sent to the queue waits."
        case Halted.STOPPED:
            steps, then = (f"mend the cause or {out}",), "It begins at the top of the queue; nothing is received until then."
        case Halted.FAULTED if system == _FORGETS:
            steps, then = (f"mend the cause or {out}",), "The message has fresh attempts then; nothing is received until then."
        case Halted.FAULTED:
            steps, then = (f"{out} (its attempts are used up, it would halt the queue again)",), "Nothing is received until then."
        case _:
            assert_never(how)
    return f"To go on, {', then '.join((*(steps if lookup_id is not None else ()), enable))}. {then}"


def _said(facts: Mapping[str, str]) -> list[str]:
    """Return what the facts say beyond the error, in sentences without their full stops."""
    said = []
    if rollbacks := facts.get("rollbacks"):
        said.append(f"{rollbacks} receives in a row were rolled back")
    if text := facts.get("text"):
        said.append(f"{facts['code']}: {text}" if "code" in facts else text)
    return [*said, *(facts[name] for name in ("reason", "warning") if facts.get(name))]
