"""Draws the packages, their imports, and the way of a picture through them, into docs/assets/rooms.svg.

`python docs/rooms.py` reads the imports from the code, and follows a call of `classify`.
"""

import ast
import functools
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "assets" / "rooms.svg"
WIDTH, HEIGHT, GAP = 140, 34, 46  # of a box, and between two rows


@functools.cache
def packages():
    """dict from the name of each package to its files.

    The folders of tasks are the package "tasks/NAME", and what they share is "tasks". The table of tasks is
    in neither.

    Example:
        >>> packages()["tasks"][0].name
        'computing.py'
    """
    files = sorted([*(ROOT / "keras_vit").glob("*/**/*.py"), *(ROOT / "export").rglob("*.py")])
    found = {}
    for path in files:
        found.setdefault(package_of(path.relative_to(ROOT)), []).append(path)
    found.pop("table")
    return found


def package_of(path):
    """The name of the package of a file.

    >>> package_of(pathlib.PurePath("keras_vit/tasks/depth/model.py"))
    'tasks/NAME'
    """
    top, *inner = path.parts
    if top != "keras_vit":
        return "export" if top == "export" else ""
    if len(inner) == 1:
        return "" if inner[0].startswith("__") else path.stem
    if inner[0] != "tasks":
        return inner[0]
    if len(inner) == 3 or path.name == "digits_scenes.py":  # a data set with labels of several tasks
        return "tasks/NAME"
    return "table" if path.name == "__init__.py" else "tasks"


def package_of_import(name):
    """The name of the package of an imported module or name of this package.

    >>> package_of_import("keras_vit.tasks.depth.model"), package_of_import("keras_vit.tasks.get_task")
    ('tasks/NAME', 'table')
    """
    top, first, *rest = [*name.split("."), "", ""]
    if top == "export":
        return "export"
    if first != "tasks":
        return first
    path = pathlib.PurePath("keras_vit", "tasks", *rest[:1])
    if rest[0] and (ROOT / path).is_dir():
        return "tasks/NAME"
    file = path.with_name(f"{path.name}.py")
    return package_of(file) if (ROOT / file).is_file() else "table"


def imports(source):
    """Every module that a source imports when it runs, wherever in it, also by a `LazyModule`.

    `from a import b` counts as a.b.

    Example:
        >>> [*imports("from keras_vit.layers import mlp")]
        ['keras_vit.layers.mlp']

    Raises:
        ValueError: for a relative import.
    """
    tree = ast.parse(source)
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    for_checkers = {id(node) for guard in guards for line in guard.body for node in ast.walk(line)}
    for node in ast.walk(tree):
        if id(node) in for_checkers:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"relative imports are not used here; got one of {node.module}")
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "LazyModule":
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def imported(files):
    """The packages that some files import when they run.

    The `__init__.py` of other packages have public names of tasks, which do not count.
    """
    found = set()
    for path in files:
        names = [name for name in imports(path.read_text(encoding="utf-8")) if name.startswith("keras_vit.")]
        own = {package_of_import(name) for name in names}
        found |= own - {"tasks/NAME"} if path.name == "__init__.py" else own
    return found & packages().keys()


def arrows():
    """dict from each package to those that it imports, without those that one of them imports, too."""
    direct = {name: imported(files) - {name} for name, files in packages().items()}

    def below(name):
        return direct[name].union(*map(below, direct[name]))

    return {
        name: {one for one in own if not any(one in below(o) for o in own)} for name, own in direct.items()
    }


def rows(targets):
    """The packages in rows, each below those that import it."""

    def depth(name):
        return 1 + max(map(depth, targets[name]), default=-1)

    depths = {name: depth(name) for name in targets}

    def is_below_its_importer(name):  # Lines from farther above would otherwise cross the box between.
        return any(name in targets[other] and depths[other] == depths[name] + 1 for other in targets)

    order = sorted(targets, key=lambda name: (is_below_its_importer(name), name))
    return [[name for name in order if depths[name] == row] for row in range(max(depths.values()), -1, -1)]


def way():
    """The packages in the order in which classifying a picture enters them."""
    import numpy as np

    import keras_vit
    from keras_vit.labels import label_kind

    label_kind("single_label")  # Otherwise `classify` would import the tasks.
    model = keras_vit.VisionTransformer(32, 8, 24, num_layers=1, mlp_dim=48, num_heads=3, num_classes=2)
    entered = {}

    def follow(frame, event, argument):
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            entered.setdefault(package_of(path.relative_to(ROOT)))

    sys.setprofile(follow)
    try:
        model.classify(np.zeros((32, 32, 3), "uint8"), top=1)
    finally:
        sys.setprofile(None)
    return [name for name in entered if name in packages()]


def picture(targets, order):
    """The drawing as SVG: boxes of packages, lines to those that they import, and numbers of the way."""
    lines, boxes, places = [], [], {}
    table = rows(targets)
    width = max(map(len, table)) * (WIDTH + GAP) + GAP
    for y, row in enumerate(table):
        step = width / len(row)
        places |= {name: (step * (x + 0.5), 20 + y * (HEIGHT + GAP)) for x, name in enumerate(row)}
    for name, own in targets.items():
        for other in sorted(own):
            (x1, y1), (x2, y2) = places[name], places[other]
            lines.append(
                f'<line x1="{x1:.0f}" y1="{y1 + HEIGHT}" x2="{x2:.0f}" y2="{y2 - 4}" class="import"/>'
            )
    for name, (x, y) in places.items():
        on_way = name in order
        style = "way" if on_way else "package"
        boxes.append(
            f'<rect x="{x - WIDTH / 2:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" class="{style}"/>'
        )
        label = f"{order.index(name) + 1}. {name}" if on_way else name
        boxes.append(f'<text x="{x:.0f}" y="{y + HEIGHT / 2 + 5:.0f}">{label}</text>')
    height = 40 + len(table) * (HEIGHT + GAP)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">
<title>The packages and their imports; numbers are the way of a picture through classify</title>
<style>
  text {{ font: 15px sans-serif; text-anchor: middle; fill: #1a1a1a; }}
  .package {{ fill: #eceff6; stroke: #5c6bc0; rx: 5px; }}
  .way {{ fill: #ffe0b2; stroke: #e65100; rx: 5px; }}
  .import {{ stroke: #7a86c8; marker-end: url(#tip); }}
</style>
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
  <path d="M0 0 8 4 0 8" fill="#7a86c8"/>
</marker>
<rect width="100%" height="100%" fill="white"/>
{chr(10).join([*lines, *boxes])}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(picture(arrows(), way()), encoding="utf-8")
