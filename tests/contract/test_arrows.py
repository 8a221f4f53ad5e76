"""Which part may import which: the arrows point one way, and some packages stay out of some parts."""

import ast
import pathlib

from made.scripts import script
from made.tables import by_table

ROOT = pathlib.Path(__file__).parents[2]
ARROWS = {  # the arrows as drawn; each part may also import what its targets may
    "interpolation": (),
    "lazy": ("messages",),
    "names": (),
    "progress": (),
    "types": (),
    "startup_logs": (),
    "names_elsewhere": (),
    "messages": ("names_elsewhere",),
    "rules": ("messages",),
    "table": (),  # of the tasks: `keras_vit/tasks/__init__.py`, which imports nothing until it is asked
    "labels": ("lazy", "names", "rules", "table"),
    "losses": ("labels",),
    "metrics": ("labels",),
    "tasks": ("models", "data", "losses", "metrics", "inspection", "progress"),  # what the tasks share
    "tasks/NAME": ("cli",),  # the folders of the tasks
    "writing": ("messages",),
    "seeds": (),
    "exporting": (),
    "layers": ("rules", "lazy", "seeds", "exporting", "interpolation"),
    "variants": ("messages",),
    "http_requests": ("messages",),
    "preprocessing": ("rules", "lazy", "http_requests", "interpolation"),
    "data": ("preprocessing", "messages", "lazy", "progress", "rules", "seeds", "labels", "writing"),
    "engine": ("layers", "losses", "data"),
    "models": ("engine", "layers", "variants", "preprocessing", "messages", "rules", "losses"),
    "weights": ("models", "messages", "lazy", "writing"),
    "inspection": ("models", "messages", "lazy"),
    "evaluation": ("weights", "tasks"),
    "search": ("lazy", "rules", "writing", "progress"),
    "training": ("evaluation", "inspection", "lazy"),
    "export": ("evaluation", "inspection", "lazy", "startup_logs"),
    "reports": ("training", "export"),
    "embeddings": ("export", "search"),
    "cli": ("reports", "search", "names", "embeddings"),
    "": ("cli",),  # the package's own __init__, and the console script
}
BACKENDS = {"tensorflow", "jax", "torch"}
NUMPY_AND_KERAS_ONLY = {
    *(
        "labels",
        "losses",
        "metrics",
        "layers",
        "engine",
        "models",
        "weights",
        "tasks",
        "tasks/NAME",
        "variants",
        "preprocessing",
    )
}
TENSORFLOW_ALLOWED = {
    "keras_vit/engine/device_dtype.py",  # each, for its devices
    "keras_vit/engine/sharding.py",  # jax
    "keras_vit/engine/strategy.py",
    "keras_vit/layers/aligned_resize.py",
    "keras_vit/layers/control_dependencies.py",
    "keras_vit/layers/head_loop.py",
    "keras_vit/layers/row_slices.py",
    "keras_vit/layers/xla_form.py",  # jax, for a gradient
    "keras_vit/engine/jax_step.py",
    "keras_vit/preprocessing/image_resizing.py",
    "keras_vit/preprocessing/preprocessing_layer.py",
    "keras_vit/preprocessing/tensors.py",
    "keras_vit/engine/tensorflow_step.py",
    "keras_vit/tasks/computing.py",
    "keras_vit/tasks/keypoints/cropping.py",
    "keras_vit/tasks/keypoints/decoding.py",
    "keras_vit/tasks/keypoints/points.py",
    "keras_vit/tasks/keypoints/reader.py",
    "keras_vit/tasks/pretraining/image_gpt_task.py",
    "keras_vit/tasks/segmentation/matching.py",
    "keras_vit/weights/array_files.py",  # torch, for torch's files
    "keras_vit/weights/download.py",
}

TASKS = pathlib.Path("keras_vit", "tasks")
# The packages with public names of tasks.
PUBLIC = {f"keras_vit/{name}/__init__.py" for name in ("models", "training")}

rooms = script("docs/rooms.py")
imports = rooms.imports
FILES = sorted(
    path.relative_to(ROOT)
    for pattern in ("keras_vit/**/*.py", "export/**/*.py", "_keras_vit_cli.py")
    for path in ROOT.glob(pattern)
)
TENSORFLOW_ALLOWED |= {  # data and exports of tasks
    path.as_posix()
    for path in FILES
    if path.match("keras_vit/tasks/*/*.py") and path.stem in ("outputs", "samples", "storage")
}


def reachable(part):
    found = {part}
    for target in ARROWS[part]:
        found |= reachable(target)
    return found


part_of = rooms.package_of


DRAWS = {
    *(f"keras_vit/inspection/{name}.py" for name in ("drawing", "figures")),
    *(path.as_posix() for path in FILES if path.match("keras_vit/tasks/*/figures.py")),
}


def violations(path, source):
    """What the file imports and must not."""
    part, found = part_of(path), []
    for name in imports(source):
        top, *rest = name.split(".")
        if top in ("keras_vit", "export"):
            target = rooms.package_of_import(name) if rest else "weights"
            target = target if target in ARROWS else "weights"  # the package's own names are from there
            if target == "tasks/NAME" and path.as_posix() in PUBLIC:
                continue
            if target not in reachable(part) | {"types"}:
                found.append(f"{path} ({part or 'top'}) imports {name}")
        if top in BACKENDS and part in NUMPY_AND_KERAS_ONLY and path.as_posix() not in TENSORFLOW_ALLOWED:
            found.append(f"{path} imports {name}; this part runs on every backend")
        if top == "matplotlib" and path.as_posix() not in DRAWS:
            found.append(f"{path} imports {name}; only figures are drawn with it")
    return found


def test_files_import_only_what_they_may():
    files = [path for path in FILES if part_of(path) != "table"]
    assert not [line for path in files for line in violations(path, (ROOT / path).read_text())]


def test_the_table_of_tasks_imports_nothing_until_it_is_asked():
    body = ast.parse((ROOT / TASKS / "__init__.py").read_text()).body
    imported = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imported] == ["import functools"]


def test_files_are_named_after_their_subjects():
    assert not {path.stem for path in FILES} & {"utils", "helpers", "common", "misc", "util"}


@by_table(
    "path, source, is_allowed",
    [
        ("layers/mlp.py", "from keras_vit.models import vit", False),
        ("layers/mlp.py", "def f():\n    import tensorflow as tf", False),
        ("data/decoding/model_input.py", "from keras_vit.variants import VARIANTS", False),
        ("models/vit/vision_transformer.py", "from keras_vit.weights.load import from_pretrained", False),
        ("weights/load.py", "from tensorflow import io", False),
        ("training/run.py", "from keras_vit.export import saved_model", False),
        ("cli/inspect.py", "import matplotlib.pyplot as plt", False),
        ("weights/load.py", "from keras_vit.layers import resize_position_grid", True),
        ("training/run.py", "import tensorflow as tf\nfrom keras_vit.data import batches", True),
        ("inspection/figures.py", "import matplotlib", True),
        ("weights/load.py", "from keras_vit.tasks.depth.model import DepthEstimator", False),
        ("weights/load.py", "from export.saved_model import export_saved_model", False),
        ("training/run.py", "from keras_vit.tasks.depth import model", False),
        ("models/__init__.py", "from keras_vit.tasks.depth.model import DepthEstimator", True),
        ("data/batches.py", "from keras_vit.tasks.task import Task", False),
        ("data/batches.py", "from keras_vit.tasks import label_kinds", True),
        ("tasks/depth/files.py", "from keras_vit.cli.prediction_folder import Folder", True),
        ("tasks/depth/model.py", "import tensorflow as tf", False),
        ("tasks/depth/samples.py", "import tensorflow as tf", True),
    ],
)
def test_imports_against_the_arrows_are_detected(path, source, is_allowed):
    assert bool(violations(pathlib.Path("keras_vit", path), source)) != is_allowed


def test_every_part_has_its_arrows():
    assert {part_of(path) for path in FILES} <= {*ARROWS}
    assert {"layers", "models", "weights", "variants", "preprocessing"} <= {part_of(p) for p in FILES}
