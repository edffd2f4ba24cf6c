"""What a delivery has at hand of the conversations whose messages it claimed: written by the driver, read by every task."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from airflow_poison.core.conversations.endpoint import ConversationEndpoint
from airflow_poison.core.conversations.services import Service

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


AS_ARRIVED = 2
"""The precedence of all that overtakes nothing."""


class Place(NamedTuple):
    """Where a message is received when that is not its place of arrival (spec SB-41).

    :param anchor: the lowest lookup id of what still waits in its dialog when its turn comes: there it is received.
    :param precedence: 0 for a DialogTimer, 1 for an Error; 2 for all others, which have no exception.
    """

    anchor: int
    precedence: int


@dataclass(frozen=True, slots=True)
class AtHand:
    """The conversations of a claim.

    :param services: of the queue, by name.
    :param endpoints: this side's endpoints, by handle, as they are stored; a conversation that only begins has none.
    :param waiting: the types of the messages that have arrived and wait in the queue, by handle.
    :param exceptions: the messages that are received elsewhere than in the order of their lookup ids, by lookup id.
    :param begun: endpoints that are not stored yet, of conversations whose first message comes behind others, or is not among what was claimed.
    """

    services: Mapping[str, Service] = field(default_factory=dict)
    endpoints: Mapping[str, ConversationEndpoint] = field(default_factory=dict)
    waiting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exceptions: Mapping[int, Place] = field(default_factory=dict)
    begun: Mapping[str, ConversationEndpoint] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        told = {
            "services": {name: service.to_dict() for name, service in self.services.items()},
            "endpoints": [endpoint.to_dict() for endpoint in self.endpoints.values()],
            "waiting": {handle: list(types) for handle, types in self.waiting.items()},
            "exceptions": [[lookup_id, *place] for lookup_id, place in self.exceptions.items()],
            "begun": [endpoint.to_dict() for endpoint in self.begun.values()],
        }
        path.write_text(json.dumps(told))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        told = json.loads(path.read_text())
        endpoints, begun = ([ConversationEndpoint.from_dict(values) for values in told[name]] for name in ("endpoints", "begun"))
        return cls(
            {name: Service.from_dict(values) for name, values in told["services"].items()},
            {endpoint.handle: endpoint for endpoint in endpoints},
            {handle: tuple(types) for handle, types in told["waiting"].items()},
            {lookup_id: Place(anchor, precedence) for lookup_id, anchor, precedence in told["exceptions"]},
            {endpoint.handle: endpoint for endpoint in begun},
        )
