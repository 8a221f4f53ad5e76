"""The pictures on which a finished model and its teachers differ most."""

import numpy as np
from PIL import Image

from keras_vit.inspection.class_map_pictures import png_bytes
from keras_vit.messages import spelled
from keras_vit.reports.evaluation_summary import MAX_IMAGES, MAX_PICTURES, draw_samples
from keras_vit.reports.page import gallery, picture
from keras_vit.reports.pictures.images import THUMBNAIL, read_samples


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
    names = model.class_names or [str(number) for number in range(model.num_classes)]
    shown = [read_samples(one, subset, order) for one in (model, *teachers)]
    pictures = []
    for place, index in enumerate(order):
        words = [f"{spelled(name)} {values[index]:.3f}"]
        if len(model.output_shape) == 2:
            for title, one, read in zip(_titles(teachers), (model, *teachers), shown):
                [output] = one.predict_on_batch(read[place][0][np.newaxis])
                decision = task.label.format(task.label.decide(output), names)
                words.append(f"{title}: {decision}{task.confidence(output)}")
        colors = model.preprocessing.colors(shown[0][place][0])
        thumbnail = Image.fromarray(np.round(colors * 255).astype("uint8"))
        thumbnail.thumbnail(THUMBNAIL)
        pictures.append(picture(png_bytes(thumbnail), f"An image of {split}", "; ".join(words)))
    words = (
        f"{split}: the largest differences between the student and its teachers first, by {spelled(name)}."
    )
    report.add("Differences from the teachers", words, gallery(pictures))


def _titles(teachers):
    if len(teachers) == 1:
        return "student", "teacher"
    return "student", *(f"teacher {number}" for number in range(1, len(teachers) + 1))
