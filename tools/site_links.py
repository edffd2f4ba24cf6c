"""A hook of mkdocs: what lies outside ``docs`` is not on the site, so links to it become plain text there. On a code forge they lead somewhere."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)[^)]*\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Return a page without links that leave ``docs``."""
    folder = posixpath.dirname(page.file.src_uri)

    def inside(link: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(folder, link[2]))
        return f"`{link[1]}`" if there.startswith("../") else link[0]

    return LINK.sub(inside, markdown)
