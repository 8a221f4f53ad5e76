"""The last section of a run's report: what can be done with its model, as commands."""

import os
import shlex

from keras_vit.data.datasets import title_of
from keras_vit.reports.page import code, table

HEADING = "What next"
EVALUATE = ("scores on the test images", "evaluate --model {run} --dataset {data}")
PREDICT = ("predictions for photographs, drawn", "predict --model {run} photos --show found")
EXPORT = ("files for phones", "export --model {run} --dataset {data} --formats tflite --output phone")
INSPECT = ("what the model attends to", "inspect --model {run} --image photo.jpg --output inside")
EMBED = ("vectors of all images", "embed --model {run} --dataset {data} --output vectors")
LABELED = (EVALUATE, PREDICT, EXPORT, INSPECT)
OF_IMAGES = (
    ("a model of your classes", "finetune --weights {run} --dataset folder:photos --workdir tuned"),
    ("the classes that vectors tell apart", "fewshot --model {run} --dataset folder:photos"),
    EMBED,
    INSPECT,
)
OF_PAIRS = (
    ("the recall of captions and images", "evaluate --model {run} --dataset {data} --retrieval"),
    ("classes by words", 'predict --model {run} --labels "a cat,a dog" photos --show found'),
    ("a search by words", "search index photos --model {run} --index found"),
    ("and its query", "search query a red car --index found"),
)


def add_next_steps(report, config, name):
    """Add a table of commands to a report, without the locations of the run and its data set.

    Args:
        report: Report.
        config: RunConfig.
        name: That of the run's folder.
    """
    commands = LABELED if config.task.needs_labels else OF_IMAGES
    if config.recipe.image_text is not None:
        commands = OF_PAIRS
    data = [_named(config.dataset), *(word for field in config.fields for word in ("--field", field))]
    data += ["--classes", os.path.basename(config.classes)] if config.classes else []
    values = {"run": shlex.quote(name), "data": shlex.join(data)}
    rows = [(what, code(f"keras-vit {command.format(**values)}")) for what, command in commands]
    text = "Commands for the folders that have the run and the data; photos and photo.jpg are yours."
    report.add(HEADING, text, table("Next steps", ("for", "command"), rows))


def _named(dataset):
    """A data set as a command names it, without the location of its folder.

    >>> _named("folder:/home/me/flowers"), _named("digits"), _named("digits*2 + folder:/a/b")
    ('folder:flowers', 'digits', 'digits*2 + b')
    """
    source, title = dataset.partition(":")[0], title_of(dataset)
    is_one = ":" in dataset and " + " not in dataset
    return f"{source}:{title}" if is_one and not title.startswith(f"{source}:") else title
