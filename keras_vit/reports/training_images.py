"""What a run's model was trained on: a section of its report with augmented images and their labels."""

import numpy as np

from keras_vit.data.batches import training_batches
from keras_vit.inspection.label_pictures import label_sheet
from keras_vit.labels import label_kind
from keras_vit.training.building import subset

HEADING = "What the model saw"
COUNT = 8  # images


def add_training_images(report, config, model, dataset):
    """Add the first training images of a run to a report, as its augmentation changed them.

    Nothing is added for objectives with an augmentation of their own, and for images of several sizes.

    Args:
        report: Report.
        config: RunConfig.
        model: Its finished model.
        dataset: Its `Dataset`.
    """
    recipe, preprocessing = config.recipe, config.task.preprocessing(model)
    if config.task.augment is not None or preprocessing.image_size is None:
        return
    samples, names, kind = dataset.split("train"), dataset.class_names, label_kind(dataset.task)
    if recipe.train_samples is not None:
        samples = subset(samples, recipe.train_samples, recipe.seed)
    size = recipe.batch_size
    # They are a part of the run's first batch, since a smaller batch of a mixture has other samples, or none.
    part = next(part for part in range(min(COUNT, size), size + 1) if size % part == 0)
    batches = training_batches(
        samples,
        preprocessing,
        size,
        seed=recipe.seed,
        steps=-(-COUNT // part),
        augmentation=recipe,
        num_classes=len(names) if recipe.mixes else None,
        workers=size // part,
    )
    images, labels = (np.concatenate(parts)[:COUNT] for parts in zip(*batches.as_numpy_iterator()))
    captions = dataset.captions("train")
    words = [label_words(label, kind, names, captions) for label in labels]
    figure = label_sheet(preprocessing.colors(images), labels, words, kind, names, "Training images")
    text = f"The first {COUNT} training images, cropped, flipped and changed as the recipe says, with labels."
    report.add(HEADING, text)
    report.draw(HEADING, "training-images", figure, f"{COUNT} augmented training images with their labels")


def label_words(label, kind, names, captions):
    """A label in words; empty for maps and for images without labels."""
    if captions is not None:
        return captions[label][0]
    if kind.is_map or not names:
        return ""
    if kind.is_class_id and np.ndim(label):  # a mixture of two images
        order = [number for number in np.argsort(-label) if label[number] >= 0.005]
        parts = [f"{label[number]:.0%} {names[number]}" for number in order]
        return ", ".join(parts) if len(parts) > 1 else names[order[0]]
    return kind.format(label, names)
