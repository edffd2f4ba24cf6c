"""Draw the diagrams: ``python -m tools.sequences``."""

from __future__ import annotations

from pathlib import Path

from tools.sequences.diagrams import DIAGRAMS

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"

if __name__ == "__main__":
    for name, diagram in DIAGRAMS.items():
        (IMAGES / name).write_text(diagram.to_svg())
        print(IMAGES / name)
