"""The picture of the house, drawn from its imports: ``python -m tools.house`` writes docs/images/house.svg."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "airflow_poison"
PICTURE = ROOT / "docs" / "images" / "house.svg"
AIRFLOW = "Airflow"
"""The room of operators, sensors, triggers, hooks and what else Airflow loads."""
STORE = "store"
"""Its place is on the right, so that lines down to it do not pass behind other rooms."""
OF_AIRFLOW = frozenset({"decorators", "hooks", "links", "operators", "sensors", "triggers"})
QUEUE = "queue"
"""The door without Airflow: one module."""
DOORS = frozenset({AIRFLOW, QUEUE, "cli", "testing", "ui"})
"""Where users come in; the other rooms know nothing of these."""
WIDTH, HEIGHT, GAP = 210, 56, 46


def modules() -> dict[str, Path]:
    """Return the file of each module by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if path.stem == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """Return the room that a module is in: its package, or what Airflow loads."""
    name = module.removeprefix("airflow_poison").lstrip(".").partition(".")[0]
    return name if ((PACKAGE / name).is_dir() or name == QUEUE) and name not in OF_AIRFLOW | {""} else AIRFLOW


@cache
def inside() -> frozenset[str]:
    """Return the rooms behind the doors."""
    return frozenset(room_of(module) for module in modules()) - DOORS


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a module imports when it runs; what only types name does not count."""
    for module, name in _imported(path):
        if f"{module}.{name}" in known:
            yield f"{module}.{name}"
        elif module in known:
            yield module


@cache
def _imported(path: Path) -> list[tuple[str, str]]:
    tree = _parsed(path)
    typed = {id(each) for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" for each in ast.walk(node)}
    there = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typed]
    return [(node.module or "", alias.name) for node in there for alias in node.names]


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def uses(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return which rooms each room imports."""
    found: dict[str, set[str]] = {room_of(module): set() for module in known}
    for module, path in known.items():
        found[room_of(module)] |= {room_of(other) for other in imports(path, known)} - {room_of(module)}
    return found


def one_way(used: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports of rooms that do not import each other."""
    return {room: {other for other in others if room not in used[other]} for room, others in used.items()}


def rows(used: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the rooms in rows: each stands above those that it imports, where imports do not go both ways."""
    down, depth = one_way(used), dict[str, int]()

    def depth_of(room: str, above: tuple[str, ...] = ()) -> int:
        if room not in depth:
            depth[room] = 1 + max((depth_of(other, (*above, room)) for other in down[room] if other not in above), default=-1)
        return depth[room]

    found = defaultdict(list)
    for room in sorted(used):
        found[depth_of(room)].append(room)
    return [found[number] for number in sorted(found, reverse=True)]


def direct(down: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Return the imports that do not follow from others."""

    def below(room: str, seen: frozenset[str]) -> set[str]:
        return {room} | {each for other in down[room] - seen for each in below(other, seen | {room})}

    return {
        (room, other) for room in down for other in down[room] if not any(other in below(third, frozenset({room})) for third in down[room] - {other})
    }


def picture(used: Mapping[str, set[str]]) -> str:
    """Return the picture as SVG."""
    stacked = rows(used)
    width = max(len(row) for row in stacked) * (WIDTH + GAP) + GAP
    height = len(stacked) * (HEIGHT + GAP) + GAP
    place = {}
    lines_down = direct(one_way(used))
    for level, row in enumerate(stacked):
        for number, room in enumerate(sorted(row, key=lambda room: (room == STORE) + ((room, STORE) in lines_down))):
            place[room] = width * (number + 0.5) / len(row) - WIDTH / 2, GAP + level * (HEIGHT + GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img"'
    lines = [f'{head} aria-label="The rooms of the code">', '<rect width="100%" height="100%" fill="#ffffff"/>']
    both = {(room, other) for room in used for other in used[room] if room < other and room in used[other]}
    for room, other in sorted(lines_down | both):
        (x, y), (to_x, to_y) = place[room], place[other]
        style = 'stroke="#c62828" stroke-dasharray="6 4"' if (room, other) in both else 'stroke="#8a9a9a"'
        ends = f'x1="{x + WIDTH / 2:.0f}" y1="{y + HEIGHT:.0f}" x2="{to_x + WIDTH / 2:.0f}" y2="{to_y:.0f}"'
        lines.append(f'<line {ends} {style} stroke-width="1.5"/>')
    for room, (x, y) in place.items():
        lines += [
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#e6f2f1" stroke="#00796b"/>',
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 33:.0f}" text-anchor="middle" font-size="15" fill="#10302d">{escape(room)}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])


def stale() -> dict[Path, str]:
    """Return the picture, if the file is not current."""
    wanted = picture(uses(modules()))
    return {} if PICTURE.exists() and PICTURE.read_text() == wanted else {PICTURE: wanted}


if __name__ == "__main__":
    for path, text in stale().items():
        path.write_text(text)
