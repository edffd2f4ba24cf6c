"""Numbers of things as people read them."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its thing: ``1 message``, ``2,000 messages``, ``1 delivery``.

    :param many: the plural; empty: with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
