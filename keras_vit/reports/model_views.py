"""Views of what a model has learned and attends to: sections of a report, and arrays."""

import dataclasses
import itertools

import numpy as np

from keras_vit import inspection
from keras_vit.inspection import figures
from keras_vit.inspection.blocks import check_images
from keras_vit.progress import Progress

PER_FIGURE = 4  # images computed together and drawn in one figure


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and the images for which it is inspected.

    Args:
        model: A `VisionTransformer`.
        images: Model inputs (height, width, channels), of any sizes that the model accepts.
        names: One per image.
        block: The block whose heads are drawn; None: the last, or the probe.
        trained_on_gray: Whether the model has seen nothing but gray images, as `seen_gray` finds.

    Raises:
        ValueError: with an image's name, if the model does not accept it.
    """

    model: object
    images: list
    names: list
    block: int | None = None
    trained_on_gray: bool = False

    def __post_init__(self):
        for image, name in zip(self.images, self.names, strict=True):
            try:
                check_images(self.model, image[np.newaxis])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    def groups(self):
        """Yield (images, their pixels, names), stacked: neighbors of one size, at most `PER_FIGURE`."""
        if not self.images:
            raise ValueError("there are no images")
        pairs = zip(self.images, self.names)
        for _, same_size in itertools.groupby(pairs, lambda pair: pair[0].shape):
            while group := [*itertools.islice(same_size, PER_FIGURE)]:
                images = np.stack([image for image, _ in group])
                yield images, self.model.preprocessing.colors(images), [name for _, name in group]


def seen_gray(config, model, images):
    """Whether a run from random weights has seen gray images alone, whose three channels are the same.

    Args:
        config: A run's config.json.
        model: Its `VisionTransformer`.
        images: Model inputs (height, width, channels) of its data set.
    """
    if config["weights"] or model.preprocessing.channels != 3 or not len(images):
        return False
    return all(np.ptp(model.preprocessing.colors(image), axis=-1).max() < 1e-3 for image in images)


def add_views(report, subject, names=None):
    """Add views of a model to a report.

    Args:
        report: Report.
        subject: Subject.
        names: Which of `VIEWS`; None: all.

    Returns:
        (arrays, missing): the views' arrays by name, and for views that the model does not have the reason.
    """
    arrays, missing = {}, {}
    for name in Progress(names or VIEWS, "inspecting", unit="view"):
        heading, words, view = VIEWS[name]
        try:
            arrays[name], drawn = view(subject)
        except ValueError as error:  # the images were checked: the model lacks this
            missing[name] = str(error)
            report.add(heading, f"Not shown: {error}.")
            continue
        report.add(heading, words)
        for i, (figure, title) in enumerate(drawn, 1):
            report.draw(heading, f"{name}-{i}" if i > 1 else name, figure, title)
    return arrays, missing


def _rollout(subject):
    title, maps, drawn = "Attention rollout", [], []
    for images, pixels, names in subject.groups():
        maps.append(inspection.attention_rollout(subject.model, images))
        figure = figures.attention_overlay(pixels, maps[-1], names, title)
        drawn.append((figure, f"{title}: {', '.join(names)}"))
    return maps, drawn


def _heads(subject):
    images, pixels, names = next(subject.groups())
    maps = inspection.attention_maps(subject.model, images[:1], subject.block)[0]
    block = "" if subject.block is None else f" of block {subject.block}"
    title = f"Attention of each head{block}: {names[0]}"
    return maps, [(figures.head_figure(pixels[0], maps, title), title)]


def _distances(subject):
    distances = [inspection.attention_distance(subject.model, images) for images, _, _ in subject.groups()]
    distances, title = np.concatenate(distances).mean(axis=0), "Mean attention distance"  # (blocks, heads)
    return distances, [(figures.distance_figure(distances, title), f"{title}: {', '.join(subject.names)}")]


def _filters(subject):
    if subject.trained_on_gray:
        raise ValueError("the images are gray, so the colors of the filters are those of the random weights")
    components, explained = inspection.filter_components(subject.model)
    if components.shape[1:3] == (1, 1):
        raise ValueError("the filters are of one pixel and have no pattern")
    title = "Principal components of the filters"
    return (components, explained), [(figures.filter_figure(components, explained, title), title)]


def _positions(subject):
    similarity = inspection.position_similarity(subject.model)
    title = "Cosine similarity of the position embeddings"
    return similarity, [(figures.position_figure(similarity, title), title)]


def _similarity(subject):
    images, pixels, names = next(subject.groups())
    similarity = inspection.patch_similarity(subject.model, images[:1])[0]
    rows, columns = similarity.shape[:2]
    cells = [*dict.fromkeys((rows * part // 4, columns * part // 4) for part in (1, 2, 3))]
    title = f"Patch similarity: {names[0]}"
    return similarity, [(figures.similarity_figure(pixels[0], similarity, cells, title), title)]


VIEWS = {  # name → heading, explanation, and a function from a Subject to arrays and (figure, title) pairs
    "rollout": (
        "Attention rollout",
        "Attention multiplied through all blocks (Abnar and Zuidema 2020); the MLPs are not considered. "
        "Images are drawn after preprocessing.",
        _rollout,
    ),
    "heads": (
        "Attention of each head",
        "The attention of each head of one block in the first image.",
        _heads,
    ),
    "distances": (
        "Attention distance",
        "The mean distance in pixels between a patch and the patches it attends to, over the images. "
        "Heads with a small distance act like a convolution.",
        _distances,
    ),
    "filters": (
        "Patch filters",
        "The principal components of the patch embedding's filters: smooth patterns after long training, "
        "noise after short training.",
        _filters,
    ),
    "positions": (
        "Position embeddings",
        "The cosine similarity of each position embedding to all others. Similar neighbors, rows and "
        "columns show that the embeddings represent the image's two dimensions.",
        _positions,
    ),
    "similarity": (
        "Patch similarity",
        "The cosine similarity of the output tokens of marked patches to all others of the first image.",
        _similarity,
    ),
}
