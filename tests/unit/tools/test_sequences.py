"""The sequence diagrams of the documentation: what is committed is what is drawn, and nothing in them runs over its box."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.sequences.diagrams import DIAGRAMS
from tools.sequences.drawing import Arrow, Diagram, Note

ROOT = Path(__file__).parents[3]
MOST_IN_BOX, MOST_ON_ARROW = 28, 30
"""Characters that fit into a box, and on an arrow of one lane."""


@pytest.mark.parametrize(("name", "diagram"), DIAGRAMS.items())
def test_the_picture_is_as_drawn(name: str, diagram: Diagram) -> None:
    assert (ROOT / "docs" / "images" / name).read_text() == diagram.to_svg(), "draw it again: python -m tools.sequences"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_page_shows_it(name: str) -> None:
    assert any(f"images/{name}" in page.read_text() for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("diagram", DIAGRAMS.values(), ids=list(DIAGRAMS))
def test_every_text_fits(diagram: Diagram) -> None:
    lanes = {name: number for number, name in enumerate(diagram.lanes)}
    for step in diagram.steps:
        if isinstance(step, Arrow):
            assert len(step.text) <= MOST_ON_ARROW * abs(lanes[step.start] - lanes[step.end])
        elif isinstance(step, Note) and step.to is None:
            assert max(map(len, step.text.split("\n"))) <= MOST_IN_BOX


def test_signs_of_xml_are_escaped() -> None:
    ET.fromstring(Diagram("a < b", "&", ("<x>", "y"), (Arrow("<x>", "y", "a & b"), Note("y", "<"))).to_svg())
