"""What a task with several queues receives with: one entry for each queue, as given in the DAG file and as rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from airflow_poison.core.delivery.handlers import check_given
from airflow_poison.core.errors import SettingError
from airflow_poison.core.passes.runs import check_named_once
from airflow_poison.core.policies import checked_policy

if TYPE_CHECKING:
    from airflow_poison.core.conversations.services import Service
    from airflow_poison.core.delivery.handlers import HandlerLike
    from airflow_poison.core.policies.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueToReceive:
    """One of the queues of a ``QueueReceiveOperator``.

    :param queue_name: the queue's name. (templated)
    :param handler: None: the operator's. (templated, a name)
    :param policy: None: the operator's; is there none, the recorded policy rules.
    :param services: declared on the queue before the pass.
    """

    queue_name: str
    handler: HandlerLike | None = None
    policy: Policy | None = None
    services: Sequence[Service] = ()


Entry: TypeAlias = QueueToReceive | Mapping[str, object] | str
"""One queue: a name, or with a handler and a policy of its own; as a dict, whose policy may be ``policy.to_dict()``."""

_KEYS = tuple(field.name for field in fields(QueueToReceive))


def to_render(queues: Sequence[Entry]) -> Sequence[object]:
    """Return the entries as Airflow can render and show them: names and dicts. What only a running task knows stays as it is."""
    if not _is_list(queues):
        return queues
    return [{key: getattr(entry, key) for key in _KEYS} if isinstance(entry, QueueToReceive) else entry for entry in queues]


def listed(queues: object, handler: HandlerLike | None, policy: Policy | None) -> list[QueueToReceive]:
    """Return the rendered entries, each with its handler and policy.

    :param handler: of the queues that name none.
    :param policy: of the queues that name none.
    Raises SettingError for what is no entry, a queue that has no handler, and a queue that is named twice, HandlerNotFoundError for what
    can be no handler.
    """
    if not _is_list(queues):
        raise SettingError("queues", queues, "a list of queue names, QueueToReceive, and dicts with the keys " + ", ".join(_KEYS))
    entries = [_entry(given, handler, policy) for given in queues]
    check_named_once(entry.queue_name for entry in entries)
    return entries


def is_known(queues: object) -> bool:
    """Whether the entries stand in the DAG file, and none of them is another task's result."""
    return _is_list(queues) and all(isinstance(entry, str | dict | QueueToReceive) for entry in queues)


def _entry(given: object, handler: HandlerLike | None, policy: Policy | None) -> QueueToReceive:
    parts: Mapping[str, object] = {"queue_name": given} if isinstance(given, str) else given if isinstance(given, Mapping) else {}
    name = parts.get("queue_name")
    if not isinstance(name, str) or not name or set(parts) - set(_KEYS):
        raise SettingError("queues", given, f"a queue's name, QueueToReceive, or a dict with queue_name and, when wanted, {', '.join(_KEYS[1:])}")
    own = handler if parts.get("handler") is None else parts["handler"]
    if own is None:
        raise SettingError(f"queues[{name!r}].handler", None, "a handler, there or as the operator's handler for all queues")
    check_given(own)
    return QueueToReceive(
        queue_name=name,
        handler=own,  # type: ignore[arg-type]  # checked by the pass
        policy=_policy(name, parts.get("policy")) or policy,
        services=_services(name, parts.get("services") or ()),
    )


def _policy(queue: str, given: object) -> Policy | None:
    """Return a policy, also from its JSON form. Raises SettingError."""
    if isinstance(given, Mapping):
        from airflow_poison.core.policies import policy_from_dict

        return policy_from_dict(given)
    return checked_policy(given, f"queues[{queue!r}].policy")  # type: ignore[arg-type]  # that is what is checked


def _services(queue: str, given: object) -> Sequence[Service]:
    """Return services, also from their JSON form. Raises SettingError."""
    from airflow_poison.core.conversations.services import Service

    if not _is_list(given) or not all(isinstance(each, Service | Mapping) for each in given):
        raise SettingError(f"queues[{queue!r}].services", given, "a list of Service, or of what its to_dict() gives")
    return [each if isinstance(each, Service) else Service.from_dict(each) for each in given]  # type: ignore[arg-type]  # checked above


def _is_list(queues: object) -> TypeGuard[Sequence[object]]:
    return isinstance(queues, Sequence) and not isinstance(queues, str)
