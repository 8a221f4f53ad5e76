"""From images to class names: preprocess, compute, name the best."""

import numpy as np

from keras_vit.layers.patch_embedding import check_divisible
from keras_vit.models.config import stem_stride
from keras_vit.rules import integer
from keras_vit.tasks import get_task


def check_finite(outputs):
    """The outputs of a model; ValueError if there is NaN or infinity among them."""
    if not np.isfinite(outputs).all():
        raise ValueError(
            "the model computes NaN or infinity: its weights or the images hold such numbers; "
            "`keras-vit weights show` names the arrays that do"
        )
    return outputs


def check_head(model):
    """Refuse a model whose outputs are not one row of class scores, or of values, for each image.

    Args:
        model: As for `classify`. Its attribute `without_head`, if any, is the message.

    Raises:
        ValueError: if it has no head.
    """
    if not model.is_classifier:
        built = "this model has no classification head; build it with num_classes and pooling"
        raise ValueError(getattr(model, "without_head", built))


def classify(model, images, top=5, batch_size=32, task="single_label", value_range=None):
    """What the model sees in images, best first.

    Args:
        model: A `VisionTransformer`, or what `keras_vit.export` opens in its place.
        images: What `model.preprocessing` takes: an array, a path, or a list of them.
        top: How many classes to name.
        batch_size: Images read and computed at a time.
        task: "single_label" (the probabilities are the softmax of the logits) or "multi_label" (the
            sigmoid of each).
        value_range: (lowest, highest) possible value of float images; None: (0, 1).

    Returns:
        For each image a list of (class name, probability); the class's number stands for a
        missing name.

    Raises:
        ValueError: if the model has no head or computes NaN, the task knows no classes, `top` is not
            positive, or an image cannot be read.

    Example:
        >>> [len(best) for best in model.classify(np.zeros((2, 40, 50, 3), "uint8"), top=3)]
        [3, 3]
    """
    check_head(model)
    task = get_task(task)
    if not task.has_classes:
        raise ValueError(f"classify needs a task with classes; got {task.name!r}")
    integer(at_least=1).check("top", top)
    names = model.class_names or [str(i) for i in range(model.num_classes)]
    stride = stem_stride(model.resnet)
    results = []
    for batch in model.preprocessing.batches(images, batch_size, value_range):
        # Asked here, because from within a call Keras adds lines of its own to the answer.
        check_divisible([-(-side // stride) for side in batch.shape[1:3]], model.patch_size)
        logits = check_finite(np.asarray(model.predict_on_batch(batch), "float64"))
        scores = task.probabilities(logits)
        for row in scores:
            best = np.argsort(-row, kind="stable")[:top]
            results.append([(names[i], float(row[i])) for i in best])
    return results
