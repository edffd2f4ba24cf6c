"""Sequence diagrams of the documentation, as SVG: `python -m tools.sequences` draws them all into docs/images."""
