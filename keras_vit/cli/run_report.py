"""`report.html` of a finished run: curves, evaluation, views of the model, and configuration."""

import collections
import os
import pathlib
import platform

import keras
import tensorflow as tf

import keras_vit
from keras_vit.cli.evaluation_summary import summarize, summary_sections
from keras_vit.cli.page import folded, page, picture, png_of, table
from keras_vit.cli.source import open_live
from keras_vit.cli.views import Subject, draw_views
from keras_vit.data.datasets import folder_of, load_dataset, title_of
from keras_vit.data.fingerprint import fingerprint
from keras_vit.export.description import NOT_ARCHITECTURE
from keras_vit.inspection.figures import learning_curves
from keras_vit.models.config import OPTIONS
from keras_vit.tasks import TASKS
from keras_vit.writing import atomic_write

REPORT = "report.html"
VIEWS = ("rollout", "filters", "positions")
MAX_INSPECTED = 8  # images whose attention is drawn


def write_run_report(config, workdir, record, data_dir=None):
    """Write the report of a finished run, and its figures, into the run's folder.

    At most 2,000 images of the test split are computed for it.

    Args:
        config: RunConfig.
        workdir: Workdir.
        record: What `train` returned of the run.
        data_dir: As for `load_dataset`.

    Returns:
        The paths of the figures.
    """
    model = open_live(workdir.path)
    title, data = run_title(workdir.config), title_of(config.dataset)
    sections, files = curve_sections(workdir, title)
    subject = Subject(model, [], [])
    if config.objective == "classify":
        evaluated, drawn, subject = _evaluation(config, workdir, model, record, f"{data}, test", data_dir)
        sections, files = sections | evaluated, files | drawn
    # Without labels, no image is computed.
    views, drawn, *_ = draw_views(subject, VIEWS if subject.images else VIEWS[1:])
    rows = ("seconds of training", record["train_seconds"]), ("replicas", record["replicas"])
    tables = run_tables(workdir.config, record)
    sections |= views | configuration_section(model, *tables, environment_table(*rows))

    paths = {workdir.figures / f"{name}.png": png for name, png in (files | drawn).items()}
    result = summary(record)
    words = [f"{result[0].upper()}{result[1:]}."]
    if "data" in record:  # which runs of version 0.1 lack
        words.append(f"{data}: {record['data']}.")
    for path, content in {**paths, workdir.path / REPORT: page(title, words, sections)}.items():
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, content)
    return [str(path) for path in paths]


def run_title(config):
    """Return a run's title, from the values of its config.json."""
    return f"{_model_name(config)} on {title_of(config['dataset'])}"


def curve_sections(workdir, title):
    """Return the section of a run's curves, and its PNG file by name; none without rows of metrics.csv."""
    rows = workdir.metrics()
    if not rows:
        return {}, {}
    curves = png_of(learning_curves(rows, title, workdir.steps()))
    words = "Training images by step, validation images where the model was evaluated."
    return {"Training": [words, picture(curves, f"Learning curves of {title}")]}, {"curves": curves}


def summary(record):
    """Return a run's result in one line.

    >>> summary({"test_accuracy": 0.5, "test_samples": 10, "steps": 20, "train_seconds": 3.2})
    'test accuracy 0.5000 on 10 images after 20 steps in 3 s'
    """
    names = [f"test_{task.primary_metric}" for task in TASKS.values()]
    scores = [f"{name.replace('_', ' ')} {record[name]:.4f}" for name in names if name in record]
    tested = f"{', '.join(scores)} on {record['test_samples']} images" if scores else "finished"
    return f"{tested} after {record['steps']} steps in {record['train_seconds']:.0f} s"


def name_of(source):
    """Return the name of a checkpoint or run, without its folder or host.

    >>> [name_of(source) for source in ("/home/me/runs/cats/model.keras", "~/vit.npz", "hf://google/vit")]
    ['cats', 'vit.npz', 'hf://google/vit']
    """
    if source.startswith("hf://"):
        return source
    if "://" in source:
        path = pathlib.PurePath(source.split("?")[0])  # the query may hold a key
    else:
        path = pathlib.PurePath(os.path.abspath(os.path.expanduser(source)))
    return (path.parent.name if path.name == "model.keras" else path.name) or source


def configuration_section(model, *tables):
    """Return the folded section of tables and of the model's options and preprocessing."""
    config = model.get_config()
    rows = [(name, config[name]) for name in config if name in OPTIONS and name not in NOT_ARCHITECTURE]
    rows = [("parameters", model.count_params()), *rows, ("dtype", model.dtype_policy.name)]
    preprocessing = table("Preprocessing", (), [*config["preprocessing"].items()])
    return {"Configuration": [folded("Show", *tables, table("Model", (), rows), preprocessing)]}


def environment_table(*rows):
    """Return the table of versions and devices, after other rows."""
    devices = collections.Counter(device.device_type for device in tf.config.list_physical_devices())
    versions = {"keras_vit": keras_vit, "keras": keras, "tensorflow": tf}
    rows = [
        *rows,
        *((name, package.__version__) for name, package in versions.items()),
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("devices", ", ".join(f"{count} {kind}" for kind, count in devices.items())),
    ]
    return table("Environment", (), rows)


def run_tables(config, record):
    """Return the tables of a run and its recipe, from config.json and result.json, without any folder."""
    rows = [
        ("model", _model_name(config)),
        ("weights", name_of(config["weights"]) if config["weights"] else "random"),
        ("objective", config["objective"]),
        *([("target", config["target"])] if config["objective"] == "masked_patch" else []),
        ("data set", title_of(config["dataset"])),
        ("classes and images", record.get("data")),
        ("skipped unreadable images", len(record["bad_images"])),
        ("steps", record["steps"]),
        ("best step on the validation images", record["best_step"]),
    ]
    # These two are the run's or the model's, unless the recipe defines them.
    optional = ("model", "image_size")
    recipe = [(name, x) for name, x in config["recipe"].items() if x is not None or name not in optional]
    return table("Run", (), rows), table("Recipe", (), recipe)


def _evaluation(config, workdir, model, record, split, data_dir):
    """Return sections and files of the evaluation, and the Subject to inspect."""
    scores = {name.removeprefix("test_"): v for name, v in record.items() if name.startswith("test_")}
    recipe, options = config.recipe, {"task": config.recipe.task, "data_dir": data_dir}
    try:
        dataset = load_dataset(config.dataset, recipe.seed, config.on_bad_image, **options)
        workdir.check_data(fingerprint(dataset))
    except (ValueError, OSError) as error:  # The data of a finished run may be gone or changed.
        print(f"no images in {REPORT}: {error}")  # not in the page, which is shared: it names folders
        words = "The images cannot be read any more or have changed, so none is shown."
        sections = {"Scores": [words, table(f"Scores on {split}", ("score", "value"), [*scores.items()])]}
        return sections, {}, Subject(model, [], [])
    samples, folder = dataset.split("test"), folder_of(config.dataset)
    found = summarize(model, samples, recipe.task, dataset.class_names, recipe.batch_size, folder=folder)
    subject = Subject(model, found.images[:MAX_INSPECTED], found.labels[:MAX_INSPECTED])
    return *summary_sections(found, split, scores), subject


def _model_name(config):
    if config["weights"]:
        return name_of(config["weights"])
    return config["model"] if isinstance(config["model"], str) else "A Vision Transformer"
