"""Draws a sequence diagram: lifelines from left to right, steps from top to bottom."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Tone = Literal["plain", "good", "bad"]
LANE, MARGIN, HEAD, STEP, LINE = 200, 104, 46, 32, 16
STYLE = """
    .box { fill: #ddf4ff; stroke: #0969da; stroke-width: 1.5 }
    .note { fill: #f6f8fa; stroke: #8c959f }
    .good { fill: #dafbe1; stroke: #1a7f37 }
    .bad { fill: #ffebe9; stroke: #cf222e }
    .life { stroke: #8c959f; stroke-dasharray: 4 4 }
    .line { fill: none; stroke: #57606a; stroke-width: 1.5 }
    .head { fill: #57606a }
    text { fill: #1f2328 }
    .name { font-weight: 600 }
    .on-line { paint-order: stroke; stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round }
    @media (prefers-color-scheme: dark) {
      .box { fill: #0c2d6b; stroke: #4493f8 }
      .note { fill: #161b22; stroke: #656c76 }
      .good { fill: #033a16; stroke: #3fb950 }
      .bad { fill: #490202; stroke: #f85149 }
      .life { stroke: #656c76 }
      .line { stroke: #9198a1 }
      .head { fill: #9198a1 }
      text { fill: #f0f6fc }
      .on-line { stroke: #0d1117 }
    }
"""


@dataclass(frozen=True, slots=True)
class Arrow:
    """Something that goes from one lifeline to another."""

    start: str
    end: str
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is so at a lifeline, or from one to another; lines of text are separated by newlines."""

    at: str
    text: str
    tone: Tone = "plain"
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Diagram:
    """A sequence diagram.

    :param description: all of it in words, for those who cannot see it.
    :param lanes: the names of the lifelines, from left to right.
    """

    title: str
    description: str
    lanes: Sequence[str]
    steps: Sequence[Arrow | Note]

    def to_svg(self) -> str:
        """Return it as a picture that follows the reader's light or dark colours."""
        places = {name: MARGIN + number * LANE for number, name in enumerate(self.lanes)}
        steps, bottom = list[str](), HEAD + 34
        for step in self.steps:
            drawn, height = _arrow(step, places, bottom) if isinstance(step, Arrow) else _note(step, places, bottom)
            steps += drawn
            bottom += height
        width, height = 2 * MARGIN + (len(self.lanes) - 1) * LANE, bottom + 10
        return "\n".join([*self._opening(width, height), *_lifelines(places, bottom), *steps, "</svg>", ""])

    def _opening(self, width: int, height: int) -> Iterator[str]:
        font = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="{font}" font-size="12.5" role="img" '
            'aria-labelledby="title desc">'
        )
        yield f'  <title id="title">{escape(self.title)}</title>'
        yield f'  <desc id="desc">{escape(self.description)}</desc>'
        yield f"  <style>{STYLE}  </style>"
        yield (
            '  <defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
            '<path class="head" d="M0 0 10 5 0 10z"/></marker></defs>'
        )


def _lifelines(places: dict[str, int], bottom: int) -> Iterator[str]:
    for name, x in places.items():
        yield f'  <path class="life" d="M{x} {HEAD}V{bottom}"/>'
        yield f'  <rect class="box" x="{x - 92}" y="10" width="184" height="36" rx="8"/>'
        yield f'  <text class="name" x="{x}" y="33" text-anchor="middle">{escape(name)}</text>'


def _arrow(step: Arrow, places: dict[str, int], y: int) -> tuple[list[str], int]:
    start, end = places[step.start], places[step.end]
    gap = 1 if end > start else -1
    return [
        f'  <path class="line" d="M{start} {y}H{end - gap}" marker-end="url(#arrow)"/>',
        f'  <text class="on-line" x="{(start + end) // 2}" y="{y - 6}" text-anchor="middle">{escape(step.text)}</text>',
    ], STEP


def _note(step: Note, places: dict[str, int], y: int) -> tuple[list[str], int]:
    lines, left, right = step.text.split("\n"), places[step.at], places[step.to or step.at]
    top, height = y - 20, LINE * len(lines) + 10
    tone = "note" if step.tone == "plain" else step.tone
    drawn = [f'  <rect class="{tone}" x="{left - 92}" y="{top}" width="{right - left + 184}" height="{height}" rx="6"/>']
    drawn += [
        f'  <text x="{(left + right) // 2}" y="{top + 18 + LINE * number}" text-anchor="middle">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return drawn, height + 20
