"""Pictures of the page in the documentation are those that ``make pictures`` takes anew."""

from __future__ import annotations

import re

from tools.pictures import PICTURES, ROOT, STORY


def test_every_picture_of_the_page_is_taken_by_the_story_and_shown() -> None:
    taken = set(re.findall(r'shoot\(page, "([a-z-]+)"\)', (ROOT / STORY).read_text(encoding="utf-8")))
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert {path.stem for path in PICTURES.glob("*.png")} == taken == set(re.findall(r"images/([a-z-]+)\.png", pages))
