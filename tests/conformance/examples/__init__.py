"""The worked examples of the specification as data, one file for each system."""

from __future__ import annotations

from tests.conformance.examples import wcf

EXAMPLES = (*wcf.EXAMPLES,)
