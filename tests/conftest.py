"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("rules", deadline=None)  # an example is judged by what it does: how long it takes says what else the machine does
settings.load_profile("rules")
