"""The source of docs/how-to/write-a-source.md passes the tests that the page shows."""

from __future__ import annotations

import sys
from contextlib import chdir
from tempfile import TemporaryDirectory
from types import ModuleType

from tests.given.pages import ROOT, script

_page = sys.modules["page_write_a_source"] = ModuleType("page_write_a_source")
"""A module, for sources are pickled by where their class is."""
with TemporaryDirectory() as folder, chdir(folder):
    exec(compile(script(ROOT / "docs/how-to/write-a-source.md"), "write-a-source.md", "exec", dont_inherit=True), _page.__dict__)

TestLog = _page.TestLog
