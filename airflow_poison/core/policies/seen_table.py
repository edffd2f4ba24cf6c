"""The table of seen counts that a WCF channel on MSMQ 3.0 keeps in memory (spec M3-5, M3-7, M3-8)."""

from __future__ import annotations


class SeenTable:
    """How often each of the last messages was read, by lookup id.

    :param size: how many messages it holds, at least 1; a further one takes the place of the smallest lookup id.
    """

    __slots__ = ("_seen", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen: dict[int, int] = {}

    def read(self, lookup_id: int) -> int:
        """Count a read and return the message's seen count."""
        if lookup_id not in self._seen and len(self._seen) >= self._size:
            del self._seen[min(self._seen)]
        seen = self._seen[lookup_id] = self._seen.get(lookup_id, 0) + 1
        return seen

    def take_back(self, lookup_id: int) -> None:
        """Uncount a message's last read, if it is still in the table."""
        if lookup_id in self._seen:
            self._seen[lookup_id] -= 1

    def remove(self, lookup_id: int) -> None:
        """Forget a message."""
        self._seen.pop(lookup_id, None)

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, lookup_id: int) -> bool:
        return lookup_id in self._seen
