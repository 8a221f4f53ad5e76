"""`report.html` of a finished run: how it went, how good it is, what it sees, and what it was."""

import collections
import os
import pathlib
import platform

import keras
import tensorflow as tf

import keras_vit
from keras_vit.cli.judging import judge, judged_sections
from keras_vit.cli.page import Picture, Section, Table, page, png_of
from keras_vit.cli.showing import Subject, look, view_sections
from keras_vit.cli.source import open_live
from keras_vit.data.datasets import folder_of, load_dataset, title_of
from keras_vit.data.fingerprint import fingerprint
from keras_vit.inspection.figures import learning_curves
from keras_vit.models.config import OPTIONS
from keras_vit.tasks import TASKS
from keras_vit.writing import atomic_write

REPORT = "report.html"
VIEWS = ("rollout", "filters", "positions")
LOOKED_AT = 8  # images whose attention is shown
SCORES = [f"test_{task.primary_metric}" for task in TASKS.values()]


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
    data = title_of(config.dataset)
    title = run_title(workdir.config)
    sections, files = trained_sections(workdir, title)
    subject = Subject(model, [], [])
    if config.objective == "classify":
        more, drawn, subject = _judged(config, workdir, model, record, f"{data}, test", data_dir)
        sections, files = sections + more, files | drawn
    views = VIEWS if subject.images else VIEWS[1:]  # without labels no image is computed
    more, drawn = view_sections(subject, *look(subject, views))
    seconds = ("seconds of training", record["train_seconds"]), ("replicas", record["replicas"])
    sections += [*more, configuration(model, *run_tables(workdir.config, record), environment(*seconds))]

    paths = {workdir.figures / f"{name}.png": png for name, png in (files | drawn).items()}
    lead = summary(record)
    words = [f"{lead[0].upper()}{lead[1:]}."]
    if "data" in record:  # which runs of version 0.1 lack
        words.append(f"{data}: {record['data']}.")
    text = page(title, words, sections)
    for path, content in {**paths, workdir.path / REPORT: text}.items():
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, content)
    return [str(path) for path in paths]


def run_title(config):
    """What a run was a run of, by the values of its config.json."""
    return f"{_name(config)} on {title_of(config['dataset'])}"


def trained_sections(workdir, title):
    """The section of a run's curves, and its PNG file by name; none without rows of metrics.csv."""
    if not workdir.metrics():
        return [], {}
    curves = png_of(learning_curves(workdir.metrics(), title, workdir.steps()))
    words = "Training images by step, validation images where the model was evaluated."
    picture = Picture(curves, f"Learning curves of {title}")
    return [Section("Training", (words,), figures=(picture,))], {"curves": curves}


def summary(record):
    """A run's result in one line.

    >>> summary({"test_accuracy": 0.5, "test_samples": 10, "steps": 20, "train_seconds": 3.2})
    'test accuracy 0.5000 on 10 images after 20 steps in 3 s'
    """
    scores = [f"{name.replace('_', ' ')} {record[name]:.4f}" for name in SCORES if name in record]
    tested = f"{', '.join(scores)} on {record['test_samples']} images" if scores else "finished"
    return f"{tested} after {record['steps']} steps in {record['train_seconds']:.0f} s"


def name_of(source):
    """What a checkpoint or a run is called, without where it lies.

    >>> [name_of(source) for source in ("/home/me/runs/cats/model.keras", "~/vit.npz", "hf://google/vit")]
    ['cats', 'vit.npz', 'hf://google/vit']
    """
    if source.startswith("hf://"):
        return source
    if "://" in source:
        path = pathlib.PurePath(source.split("?")[0])  # an address may hold a key behind it
    else:
        path = pathlib.PurePath(os.path.abspath(os.path.expanduser(source)))
    return (path.parent.name if path.name == "model.keras" else path.name) or source


def configuration(model, *tables):
    """The folded section with the tables of a model's arguments and preprocessing, after other tables."""
    arguments = model.get_config()
    left_out = ("preprocessing", "class_names", "task", "split_seed")
    rows = [(name, value) for name, value in arguments.items() if name in OPTIONS and name not in left_out]
    rows = [("parameters", model.count_params()), *rows, ("dtype", model.dtype_policy.name)]
    preprocessing = Table("Preprocessing", (), [*arguments["preprocessing"].items()])
    return Section("Configuration", tables=(*tables, Table("Model", (), rows), preprocessing), folded=True)


def environment(*rows):
    """The table of versions and devices, after other rows."""
    devices = collections.Counter(device.device_type for device in tf.config.list_physical_devices())
    rows = [
        *rows,
        ("keras_vit", keras_vit.__version__),
        ("keras", keras.__version__),
        ("tensorflow", tf.__version__),
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("devices", ", ".join(f"{count} {kind}" for kind, count in devices.items())),
    ]
    return Table("Environment", (), rows)


def _judged(config, workdir, model, record, split, data_dir):
    """Sections and files of how good a run is, and the images to look at."""
    scores = {name.removeprefix("test_"): v for name, v in record.items() if name.startswith("test_")}
    recipe, options = config.recipe, {"task": config.recipe.task, "data_dir": data_dir}
    try:
        dataset = load_dataset(config.dataset, recipe.seed, config.on_bad_image, **options)
        workdir.check_data(fingerprint(dataset))
    except (ValueError, OSError) as error:  # A finished run's data may be gone, or others by now.
        print(f"no images in {REPORT}: {error}")  # not in the page, which is shared: where they were is told
        words = ("The images cannot be read any more or have changed, so none is shown.",)
        table = Table(f"Scores on {split}", ("score", "value"), [*scores.items()])
        return [Section("Scores", words, tables=(table,))], {}, Subject(model, [], [])
    samples = dataset.split("test")
    folder = folder_of(config.dataset)
    judged = judge(model, samples, recipe.task, dataset.class_names, recipe.batch_size, folder=folder)
    subject = Subject(model, judged.images[:LOOKED_AT], judged.truths[:LOOKED_AT])
    return *judged_sections(judged, split, scores), subject


def _name(config):
    if config["weights"]:
        return name_of(config["weights"])
    return config["model"] if isinstance(config["model"], str) else "A Vision Transformer"


def run_tables(config, record):
    """What a finished run was a run of, by its config.json and result.json, without where anything lies."""
    run = [
        ("model", _name(config)),
        ("weights", name_of(config["weights"]) if config["weights"] else "random"),
        ("objective", config["objective"]),
        *([("target", config["target"])] if config["objective"] == "masked_patch" else []),
        ("data set", title_of(config["dataset"])),
        ("classes and images", record.get("data")),
        ("unreadable images left out", len(record["bad_images"])),
        ("steps", record["steps"]),
        ("best step on the validation images", record["best_step"]),
    ]
    numbers = config["recipe"].items()
    # These two are the run's own, or the model's, unless the recipe says otherwise.
    recipe = [(name, x) for name, x in numbers if x is not None or name not in ("model", "image_size")]
    return Table("Run", (), run), Table("Recipe", (), recipe)
