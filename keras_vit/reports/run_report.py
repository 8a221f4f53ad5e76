"""`report.html` of a finished run: curves, evaluation, views of the model, and configuration."""

import functools
import os
import pathlib

from keras_vit.data.batches import evaluation_batches
from keras_vit.data.datasets import folder_of, title_of
from keras_vit.data.fingerprint import fingerprint
from keras_vit.export.description import NOT_ARCHITECTURE
from keras_vit.inspection.figures import curve_names, learning_curves, picture_rows
from keras_vit.messages import spelled
from keras_vit.models.backbones import backbone
from keras_vit.models.vit.schema import OPTIONS
from keras_vit.reports.evaluation_summary import add_evaluation, sample_images, score_table
from keras_vit.reports.model_views import Subject, add_views, seen_gray
from keras_vit.reports.next_steps import add_next_steps
from keras_vit.reports.page import Report, panels, table
from keras_vit.reports.training_images import add_training_images
from keras_vit.tasks import label_tasks
from keras_vit.training.run import load_data
from keras_vit.weights.checkpoint import read_model
from keras_vit.writing import atomic_write

REPORT = "report.html"
VIEWS = ("rollout", "filters", "positions")
RETRIEVAL = ("image_to_text_recall_1", "text_to_image_recall_1")
MAX_INSPECTED = 8  # images whose attention is drawn


def write_run_report(config, workdir, record, load=None):
    """Write the report of a finished run, and its figures, into the run's folder.

    At most 2,000 images of the test split are computed for it.

    Args:
        config: RunConfig.
        workdir: Workdir.
        record: What `train` returned of the run.
        load: A function that returns the run's `Dataset`; None for `load_data`.

    Returns:
        The paths of the figures.
    """
    load = load or functools.partial(load_data, config)
    open_data = functools.cache(functools.partial(_open_data, workdir, load))
    model, report = read_model(workdir.model), Report()
    images, names, pictures = [], [], []
    if config.task.needs_labels:
        images, names = _add_test_split(report, config, model, record, open_data)
    elif config.task.figures is not None and workdir.pretrainer.is_file():
        pictures = _add_pictures(report, config, workdir, open_data)
    if config.task.draw_differences and (dataset := open_data()) is not None:
        split = f"{title_of(config.dataset)}, test"
        batch_size = config.recipe.images_at_once(record["replicas"])
        config.task.draw_differences(report, model, dataset.split("test"), split, batch_size)
    if (dataset := open_data()) is not None:
        add_training_images(report, config, model, dataset)
    add_curves(report, workdir)
    encoder = backbone(model)
    gray = seen_gray(workdir.config, encoder, [*images, *pictures])
    subject = Subject(encoder, images[:MAX_INSPECTED], names[:MAX_INSPECTED], trained_on_gray=gray)
    add_views(report, subject, VIEWS if images else VIEWS[1:])
    add_run(report, workdir.config, record)
    add_configuration(report, encoder)
    add_next_steps(report, config, workdir.path.name)

    result = summary(record)
    sentences = [f"{result[0].upper()}{result[1:]}.", f"{title_of(config.dataset)}: {record['data']}."]
    files = {workdir.figures / name: png for name, png in report.figures.items()}
    page = {workdir.path / REPORT: report.page(run_title(workdir), *sentences)}
    for path, content in {**files, **page}.items():
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, content)
    return [str(path) for path in files]


def run_title(workdir):
    """Return a run's title, from its config.json."""
    return f"{_model_name(workdir.config)} on {title_of(workdir.config['dataset'])}"


def add_curves(report, workdir):
    """Add a run's curves to a report, if it has rows of metrics.csv."""
    if rows := workdir.metrics():
        title = run_title(workdir)
        report.add("Training", "Training images by step, validation images where the model was evaluated.")
        drawn = []
        for name in curve_names(rows):
            figure = learning_curves(rows, "", workdir.steps(), [name])
            drawn.append(report.drawn(f"curves-{name}", figure, f"The {spelled(name)} of {title} by step"))
        report.add("Training", panels(drawn))


def add_run(report, config, record):
    """Add the tables of a run and its recipe, from config.json and result.json, without any folder."""
    rows = [
        ("model", _model_name(config)),
        ("weights", name_of(config["weights"]) if config["weights"] else "random"),
        *(("teacher", name_of(source)) for source in config.get("teachers", ())),
        ("objective", config["objective"]),
        *([("target", config["target"])] if config["objective"] == "masked_patch" else []),
        ("data set", title_of(config["dataset"])),
        ("skipped unreadable images", len(record["bad_images"])),
        ("steps", record["steps"]),
        ("compiled by XLA", "yes" if record["compiled_by_xla"] else "no"),
    ]
    if record["best_step"] is not None:
        rows.append(("best step on the validation images", record["best_step"]))
    if record["steps"] < config["recipe"]["total_steps"]:
        patience = config["recipe"]["patience"]
        rows.append(("stopped early", f"after {patience} validations without a better score"))
    # These two are the run's or the model's, unless the recipe defines them.
    optional = ("model", "image_size")
    recipe = [(name, x) for name, x in config["recipe"].items() if x is not None or name not in optional]
    for title, values in (("Run", rows), ("Recipe", recipe)):
        report.add("Configuration", table(title, (), values, folded=True))


def add_configuration(report, model):
    """Add the tables of a model's options and preprocessing."""
    config = model.get_config()
    rows = [(name, config[name]) for name in config if name in OPTIONS and name not in NOT_ARCHITECTURE]
    rows = [("parameters", model.count_params()), *rows, ("dtype", model.dtype_policy.name)]
    preprocessing = table("Preprocessing", (), [*config["preprocessing"].items()], folded=True)
    report.add("Configuration", table("Model", (), rows, folded=True), preprocessing)


def summary(record):
    """Return a run's result in one line.

    >>> summary({"test_accuracy": 0.5, "test_samples": 10, "steps": 20, "train_seconds": 3.2})
    'test accuracy 0.5000 on 10 images after 20 steps in 3 s'
    >>> summary({"test_knn_accuracy": 0.5, "test_samples": 10, "steps": 20, "train_seconds": 3.2})
    'test k-NN accuracy 0.5000 on 10 images after 20 steps in 3 s'
    >>> summary({"test_ap": 0.5, "test_samples": 10, "steps": 20, "train_seconds": 3.2})
    'test ap 0.5000 on 10 images after 20 steps in 3 s'
    >>> summary({"test_abs_rel": None, "test_mae": 2.5, "test_samples": 9, "steps": 20, "train_seconds": 3.2})
    'test mae 2.5000 on 9 images after 20 steps in 3 s'
    """
    primary = [task.primary_metric for task in label_tasks().values()]
    metrics = [*dict.fromkeys([*primary, *RETRIEVAL])]  # Several tasks share "ap".
    metrics += [f"teacher_{metric}" for metric in metrics]
    tests = [name for name, value in record.items() if name.startswith("test_") and value is not None]
    tests = [name for name in tests if name != "test_samples"]
    # Objectives without labels have their own scores, all of which are shown.
    names = [f"test_{metric}" for metric in metrics if f"test_{metric}" in tests] or tests
    scores = [f"{spelled(name)} {record[name]:.4f}" for name in names]
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


def _add_test_split(report, config, model, record, open_data):
    """Add the evaluation; return images and labels of the worst predictions."""
    scores = {name.removeprefix("test_"): v for name, v in record.items() if name.startswith("test_")}
    recipe, split = config.recipe, f"{title_of(config.dataset)}, test"
    dataset = open_data()
    if dataset is None:
        text = "The images cannot be read any more or have changed, so none is shown."
        report.add("Scores", text, score_table(scores, split))
        return [], []
    samples, folder = dataset.split("test"), folder_of(config.dataset)
    if (captions := dataset.captions("test")) is not None:
        report.add("Scores", f"{split}: {len(samples)} images.", score_table(scores, split))
        first = [of_image[0] for of_image in captions]
        return sample_images(backbone(model).preprocessing, samples, recipe.task, first, MAX_INSPECTED)
    model = config.task.classifier(model, dataset)
    names, batch_size = dataset.class_names, recipe.images_at_once(record["replicas"])
    _, *worst = add_evaluation(report, model, samples, recipe.task, split, names, batch_size, folder, scores)
    return worst


def _add_pictures(report, config, workdir, open_data):
    """Add what the model that was trained without labels predicts of test images; return these inputs."""
    dataset = open_data()
    if dataset is None:
        return []
    model = read_model(workdir.pretrainer, "pretrainer")
    batches = evaluation_batches(dataset.split("test"), model.encoder.preprocessing, MAX_INSPECTED)
    images, _ = next(iter(batches))
    images = images.numpy()
    for heading, words, rows in config.task.figures(model, images):
        report.add(heading, words)
        report.draw(heading, heading.lower().replace(" ", "-"), picture_rows(rows, heading), heading)
    return images


def _open_data(workdir, load):
    """The data set of a finished run, or None if the data are gone or have changed."""
    try:
        dataset = load()
        workdir.check_data(fingerprint(dataset))
    except (ValueError, OSError) as error:
        print(f"no images in {REPORT}: {error}")  # not in the page, which is shared: it names folders
        return None
    return dataset


def _model_name(config):
    if config["weights"]:
        return name_of(config["weights"])
    return config["model"] if isinstance(config["model"], str) else "A Vision Transformer"
