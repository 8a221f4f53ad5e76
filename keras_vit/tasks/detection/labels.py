"""An image has any number of objects, each with a class and a box around it."""

import collections

import numpy as np

from keras_vit.labels.box_rows import COLUMNS, MAX_BOXES, PADDING, decode_boxes
from keras_vit.labels.label_kind import IndependentClasses


class Boxes(IndependentClasses):
    """Rows of `COLUMNS`, in fractions of the image's sides and area; outputs are boxes and logits of tokens.

    A crowd, 1 or 0, is a box around an unknown number of objects: it is not trained on, and what is found in
    it is not wrong. The area is that of the object, which may be less than that of its box.
    """

    name = "detection"
    axes = 2
    moves = has_mosaics = True

    def geometry(self):
        from keras_vit.data import boxes  # needs TensorFlow

        return boxes

    def check(self, labels, num_outputs):
        if labels.ndim != 3 or labels.shape[2] != len(COLUMNS):
            raise ValueError(
                f"expected boxes (boxes, {len(COLUMNS)}) per sample, with the columns {', '.join(COLUMNS)}; "
                f"got labels of shape {labels.shape[1:]}"
            )
        classes = labels[..., 4]
        if classes.size and not PADDING <= classes.min() <= classes.max() < num_outputs:
            worst = classes.min() if classes.min() < PADDING else classes.max()
            raise ValueError(f"expected boxes of classes below {num_outputs}; got class {worst:g}")

    def parse(self, text):
        raise ValueError(f"expected boxes, which a table cannot hold; got {text!r}")

    def counts(self, labels, names):
        """The objects and images of each class, as `keras_vit.data.statistics.describe` states them."""
        objects, images, crowds, empty = collections.Counter(), collections.Counter(), 0, 0
        areas, many = [], [0, 0]
        for label in labels:
            rows = decode_boxes(label)
            classes = rows[rows[:, 5] == 0, 4].astype(int).tolist()
            objects.update(classes)
            images.update({*classes})
            areas += np.prod(rows[:, 2:4] - rows[:, :2], axis=1)[rows[:, 5] == 0].tolist()
            if len(classes) > MAX_BOXES:
                many = [many[0] + 1, max(many[1], len(classes))]
            crowds += len(rows) - len(classes)
            empty += not len(rows)
        by_class = {name: [objects[number], images[number]] for number, name in enumerate(names)}
        quantiles = [float(np.quantile(areas, part, method="nearest")) for part in (0, 0.5, 1) if areas]
        return {
            "objects": by_class,
            "box_areas": quantiles,
            "crowds": crowds,
            "empty": empty,
            "many_objects": many,
        }

    def format(self, label, names):
        """The number of objects of each class, the most frequent first."""
        rows = np.asarray(label)
        classes = rows[(rows[:, 4] >= 0) & (rows[:, 5] == 0), 4].astype(int)
        counts = collections.Counter(classes.tolist()).most_common()
        return ", ".join(f"{count} {names[number]}" for number, count in counts) or "none"

    def stored(self, label, names):
        rows = decode_boxes(label).tolist()
        return [[names[int(row[4])] if names else int(row[4]), *row[:4], *row[5:]] for row in rows]


KIND = Boxes()
