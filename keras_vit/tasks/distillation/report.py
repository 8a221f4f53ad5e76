"""The pictures on which a finished model and its teachers differ most."""

import numpy as np

from keras_vit.messages import spelled
from keras_vit.reports.evaluation_summary import MAX_IMAGES, MAX_PICTURES, draw_samples
from keras_vit.reports.image_pictures import read_samples, thumbnail
from keras_vit.reports.page import gallery, picture
from keras_vit.tasks.distillation.stored_outputs import StoredOutputs
from keras_vit.tasks.task import names_or_indices


def add_differences(report, task, model, samples, split, batch_size=64):
    """Add the section to a report; of a large split, of `MAX_IMAGES` random samples.

    Args:
        report: Report.
        task: A task with `differences`.
        model: The finished model.
        samples: A split of a `Dataset`.
        split: Its title: "digits, test".
        batch_size: Images per batch.
    """
    teachers, subset = task.loaded(), draw_samples(samples, MAX_IMAGES)
    differences = task.differences(model, teachers, subset, batch_size)
    if not differences:
        return
    name, values = next(iter(differences.items()))
    order = np.argsort(-values, kind="stable")[:MAX_PICTURES]
    images = [image for image, _ in read_samples(model.preprocessing, subset, order)]
    outputs = []
    if len(model.output_shape) == 2 and model.num_classes is not None:
        names = names_or_indices(model.class_names, model.num_classes)
        outputs = [_outputs(one, subset, order) for one in (model, *teachers)]
    pictures = []
    for place, index in enumerate(order):
        text = [f"{spelled(name)} {values[index]:.3f}"]
        for title, of_model in zip(_titles(teachers), outputs):
            decision = task.label.format(task.label.decide(of_model[place]), names)
            text.append(f"{title}: {decision}{task.confidence(of_model[place])}")
        png = thumbnail(model.preprocessing.colors(images[place]))
        pictures.append(picture(png, f"An image of {split}", "; ".join(text)))
    text = f"{split}: the largest differences between the student and its teachers first, by {spelled(name)}."
    report.add("Differences from the teachers", text, gallery(pictures))


def _outputs(model, samples, indices):
    """The outputs of a model, or of `StoredOutputs`, for some samples."""
    if isinstance(model, StoredOutputs):
        return model.rows(samples)[indices].astype("float32")
    return [
        model.predict_on_batch(image[np.newaxis])[0]
        for image, _ in read_samples(model.preprocessing, samples, indices)
    ]


def _titles(teachers):
    if len(teachers) == 1:
        return "student", "teacher"
    return "student", *(f"teacher {number}" for number in range(1, len(teachers) + 1))
