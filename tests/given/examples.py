"""How many examples a property is tried with."""

from __future__ import annotations

import os

ALL = os.environ.get("POISON_EXAMPLES") == "all"
_FEWEST, _SHARE = 5, 4


def examples(number: int) -> int:
    """Return the examples of this run: a quarter, other ones in each run; all of them where ``POISON_EXAMPLES=all``, as in ``make faults``."""
    return number if ALL else max(number // _SHARE, min(number, _FEWEST))
