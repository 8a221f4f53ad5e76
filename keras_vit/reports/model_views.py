"""Views of what a model has learned and attends to: sections of a report, and arrays."""

import dataclasses
import itertools

import numpy as np

from keras_vit import inspection
from keras_vit.inspection import figures
from keras_vit.inspection.blocks import model_input, patch_grid
from keras_vit.inspection.norms import ARTIFACT_NORM
from keras_vit.inspection.similarity import patch_features
from keras_vit.models.vit.geometry import is_dynamic, patch_pixels
from keras_vit.preprocessing.image_resizing import resize
from keras_vit.preprocessing.inputs import as_pixels
from keras_vit.preprocessing.packing import packed_size
from keras_vit.progress import Progress
from keras_vit.reports.page import explorer

PER_FIGURE = 4  # images computed together and drawn in one figure
MAX_PATCHES = 1024  # of an image for a model that accepts any size


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and the images for which it is inspected.

    Args:
        model: A `VisionTransformer`.
        images: Model inputs (height, width, channels), of any sizes that the model accepts.
        names: One per image.
        block: The block whose heads are drawn; None: the last, or the probe.
        patches: (row, column) of the patches of the first image whose similar patches are drawn; (): a
            quarter, the middle and three quarters of the diagonal.
        trained_on_gray: Whether the model has seen nothing but gray images, as `seen_gray` finds.

    Raises:
        ValueError: with an image's name, if the model does not accept it, or the first one lacks a patch.
    """

    model: object
    images: list
    names: list
    block: int | None = None
    patches: tuple = ()
    trained_on_gray: bool = False

    def __post_init__(self):
        for image, name in zip(self.images, self.names, strict=True):
            try:
                model_input(self.model, image[np.newaxis])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if self.patches and self.images:
            rows, columns = patch_grid(self.model, self.images[0][np.newaxis])
            if not all(0 <= row < rows and 0 <= column < columns for row, column in self.patches):
                raise ValueError(
                    f"expected patches in the {rows} rows and {columns} columns of {self.names[0]}, from 0; "
                    f"got {self.patches}"
                )

    def groups(self):
        """Yield (images, their pixels, names), stacked: neighbors of one size, at most `PER_FIGURE`."""
        if not self.images:
            raise ValueError("there are no images")
        pairs = zip(self.images, self.names)
        for _, same_size in itertools.groupby(pairs, lambda pair: pair[0].shape):
            while group := [*itertools.islice(same_size, PER_FIGURE)]:
                images = np.stack([image for image, _ in group])
                yield images, self.model.preprocessing.colors(images), [name for _, name in group]


def whole_inputs(model, images):
    """Return model inputs that show whole images, which a crop might cut, and how they were resized.

    A model for any size gets an image at its own aspect ratio, in whole patches of at most its size.

    Args:
        model: A `VisionTransformer`.
        images: Paths, URLs, or arrays (height, width, channels), uint8 or in [0, 1].

    Returns:
        (list of arrays (height, width, channels), a sentence).
    """
    preprocessing, patch = model.preprocessing, patch_pixels(model)
    if not is_dynamic(model.image_size):
        shape = "{} × {} pixels".format(*model.image_size)
        note = f"Images are resized to the model's {shape}, whatever their aspect ratio."
        if preprocessing.resize == "pad":
            note = f"Images are padded to the aspect ratio of the model's {shape}, and resized."
        elif preprocessing.crops:
            preprocessing = dataclasses.replace(preprocessing, resize="squash")
            note = f"{note[:-1]}, and not cropped."
        return [preprocessing([image])[0] for image in images], note
    inputs = []
    for image in images:
        pixels = as_pixels(image, preprocessing.channels)
        height, width = pixels.shape[:2]
        fitting = max(height // patch[0], 1) * max(width // patch[1], 1)
        size = packed_size(height, width, patch, min(fitting, MAX_PATCHES))
        inputs.append(preprocessing.normalize(resize(pixels, size, preprocessing)))
    return inputs, "Images keep their aspect ratio, to whole patches, and are not cropped."


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
        heading, text, view = VIEWS[name]
        try:
            arrays[name], drawn, *notes = view(subject)
        except ValueError as error:  # the images were checked: the model lacks this
            missing[name] = str(error)
            report.add(heading, f"Not shown: {error}.")
            continue
        report.add(heading, text, *notes)
        for i, (figure, title) in enumerate(drawn, 1):
            report.draw(heading, f"{name}-{i}" if i > 1 else name, figure, title)
    return arrays, missing


def _components(subject):
    title, pictures, drawn = "Principal components", [], []
    for images, pixels, names in subject.groups():
        grids = patch_features(subject.model, images)
        count = min(3, grids.shape[-1])
        missing = [(0, 0), (0, 0), (0, 3 - count)]
        pictures_of_all = [np.pad(inspection.feature_pca(grid, count), missing) for grid in grids]
        masks = [inspection.foreground(grid) for grid in grids]
        inside = [
            np.pad(inspection.feature_pca(grid, count, mask), missing, constant_values=1)
            for grid, mask in zip(grids, masks)
        ]
        pictures += zip(pictures_of_all, masks, inside)
        figure = figures.pca_figure(pixels, pictures_of_all, inside, names, title)
        drawn.append((figure, f"{title} of the patches: {', '.join(names)}"))
    return pictures, drawn


def _rollout(subject):
    title, maps, drawn, seen = "Attention rollout", [], [], []
    for images, pixels, names in subject.groups():
        rollouts = inspection.attention_rollout(subject.model, images)
        norms = inspection.patch_norms(subject.model, images)
        maps.append(rollouts)
        seen += zip(names, norms, rollouts[:, np.newaxis])
        figure = figures.attention_overlay(pixels, rollouts, names, title, norms > ARTIFACT_NORM)
        drawn.append((figure, f"{title}: {', '.join(names)}"))
    return maps, drawn, *_artifact_notes(seen)


def _heads(subject):
    images, pixels, names = next(subject.groups())
    maps = inspection.attention_maps(subject.model, images[:1], subject.block)[0]
    norms = inspection.patch_norms(subject.model, images[:1], subject.block)[0]
    block = "" if subject.block is None else f" of block {subject.block}"
    title = f"Attention of each head{block}: {names[0]}"
    drawn = figures.head_figure(pixels[0], maps, title, norms > ARTIFACT_NORM)
    return maps, [(drawn, title)], _artifact_words(names[0], norms, maps)


def _artifact_notes(seen):
    """Return the words of each of several images that has artifacts, and one sentence for all others."""
    clean = [largest for _, norms, _ in seen if (largest := norms.max()) <= ARTIFACT_NORM]
    if len(clean) < 2:
        return [_artifact_words(*image) for image in seen]
    bound = f"{ARTIFACT_NORM:g} times the median; the largest is {max(clean):.1f} times"
    notes = [_artifact_words(*image) for image in seen if image[1].max() > ARTIFACT_NORM]
    return [*notes, f"In {len(clean)} of {len(seen)} images no patch has a norm above {bound}."]


def _artifact_words(name, norms, maps):
    """Return how many artifacts an image has, and their attention in its maps (n, rows, columns)."""
    artifacts, bound = norms > ARTIFACT_NORM, f"{ARTIFACT_NORM:g} times the median"
    if not artifacts.any():
        return f"{name}: no patch has a norm above {bound}; the largest is {norms.max():.1f} times."
    attention = maps.sum(axis=0)[artifacts].sum() / len(maps)
    return (
        f"{name}: {artifacts.sum()} of {norms.size} patches have a norm above {bound}, up to "
        f"{norms.max():.1f} times. Their {attention:.0%} of the attention is crossed out."
    )


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
    cells = subject.patches or ((rows * part // 4, columns * part // 4) for part in (1, 2, 3))
    cells, title = [*dict.fromkeys(cells)], f"Patch similarity: {names[0]}"
    drawn = figures.similarity_figure(pixels[0], similarity, cells, title)
    return similarity, [(drawn, title)], explorer(pixels[0], similarity, title)


VIEWS = {  # name → heading, explanation, and a function from a Subject to arrays and (figure, title) pairs
    "components": (
        "Feature components",
        "The first three principal components of the patches' output tokens as red, green and blue. Below, "
        "those of the foreground alone: of the patches that the first component separates from the rest. "
        "Colors can be compared within a picture only.",
        _components,
    ),
    "similarity": (
        "Patch similarity",
        "The cosine similarity of the output token of a patch to all others of the first image. Click a "
        "patch, or move with the arrow keys.",
        _similarity,
    ),
    "heads": (
        "Attention of each head",
        "The attention of each head of one block in the first image. Patches are crossed out whose tokens "
        "have a large norm: they store information about the whole image (Darcet et al. 2023).",
        _heads,
    ),
    "rollout": (
        "Attention rollout",
        "Attention multiplied through all blocks (Abnar and Zuidema 2020); the MLPs are not considered. "
        "Isolated bright patches are often no part of what determines the output.",
        _rollout,
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
}
