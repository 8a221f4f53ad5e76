"""What a model has learned and looks at, as parts of a report: computed by `inspection`, drawn, told."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
from tqdm import tqdm

from keras_vit.cli.page import Picture, Section, png_of
from keras_vit.inspection import (
    attention_distance,
    attention_maps,
    attention_rollout,
    filter_components,
    patch_similarity,
    position_similarity,
)
from keras_vit.inspection import figures as draw
from keras_vit.inspection.blocks import check_images

AT_ONCE = 4  # images computed together and drawn in one figure


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and the images that it is looked at with.

    Args:
        model: A `VisionTransformer`.
        images: Model inputs (height, width, channels), of any sizes that the model takes.
        names: One per image.
        block: Which block's heads are shown; None: the last reader's.

    Raises:
        ValueError: with an image's name, if the model does not take it.
    """

    model: object
    images: list
    names: list
    block: int | None = None

    def __post_init__(self):
        for image, name in zip(self.images, self.names, strict=True):
            check_fits(self.model, image, name)

    def groups(self):
        """(images, their pixels, names), stacked: neighbours of one size, `AT_ONCE` at most."""
        pairs = [*zip(self.images, self.names)]
        for _, alike in itertools.groupby(pairs, lambda pair: pair[0].shape):
            alike = [*alike]
            for start in range(0, len(alike), AT_ONCE):
                some = alike[start : start + AT_ONCE]
                images = np.stack([image for image, _ in some])
                yield images, self.model.preprocessing.colors(images), [name for _, name in some]


@dataclasses.dataclass(frozen=True)
class View:
    """One thing to look at.

    Args:
        heading: What it is called.
        words: What is to be seen, for who meets it for the first time.
        look: Function from a Subject to arrays; ValueError where the model has no such thing.
        show: Function from these and the Subject to figures, each with what it shows, in words.
    """

    heading: str
    words: str
    look: Callable
    show: Callable


def check_fits(model, image, name):
    """Raise ValueError, with the image's name, unless it (height, width, channels) is input for the model."""
    try:
        check_images(model, image[np.newaxis])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def look(subject, names=None):
    """Look at a model from several sides.

    Args:
        subject: Subject.
        names: Which of `VIEWS`; None: all.

    Returns:
        (found, missing): by view what its `look` returned, and why the others have nothing to show.
    """
    found, missing = {}, {}
    for name in tqdm(names or VIEWS, "looking inside", unit="view", delay=2, disable=None):
        try:
            found[name] = VIEWS[name].look(subject)
        except ValueError as error:  # what the model lacks: the subject's images fit it
            missing[name] = str(error)
    return found, missing


def view_sections(subject, found, missing):
    """A section for each view, in the order of `VIEWS`; the reason where there is nothing to show.

    Returns:
        (sections, files): Sections, and the PNG files by name.
    """
    sections, files = [], {}
    for name, view in VIEWS.items():
        if name in missing:
            sections.append(Section(view.heading, (f"Not shown: {missing[name]}.",)))
        if name not in found:
            continue
        pictures = [Picture(png_of(figure), alt) for figure, alt in view.show(found[name], subject)]
        files |= {f"{name}-{i}" if i > 1 else name: picture.png for i, picture in enumerate(pictures, 1)}
        sections.append(Section(view.heading, (view.words,), figures=tuple(pictures)))
    return sections, files


def _rollout(subject):
    return [attention_rollout(subject.model, images) for images, _, _ in _seen(subject)]


def _show_rollout(maps, subject):
    title = "Attention rollout"
    return [
        (draw.attention_overlay(pixels, seen, names, title), f"{title}: {', '.join(names)}")
        for seen, (_, pixels, names) in zip(maps, subject.groups())
    ]


def _heads(subject):
    images, _, _ = next(_seen(subject))
    return attention_maps(subject.model, images[:1], subject.block)[0]


def _show_heads(maps, subject):
    _, pixels, names = next(subject.groups())
    of = "" if subject.block is None else f" of block {subject.block}"
    title = f"Attention of each head{of}: {names[0]}"
    return [(draw.head_figure(pixels[0], maps, title), title)]


def _distances(subject):
    """(blocks, heads): the mean over the images."""
    found = [attention_distance(subject.model, images) for images, _, _ in _seen(subject)]
    return np.concatenate(found).mean(axis=0)


def _show_distances(distances, subject):
    title = "Mean attention distance"
    return [(draw.distance_figure(distances, title), f"{title}: {', '.join(subject.names)}")]


def _filters(subject):
    components, explained = filter_components(subject.model)
    *sides, channels = components.shape[1:]
    if sides == [1, 1]:
        raise ValueError("the filters read one pixel each and have no pattern")
    if channels not in (1, 3):
        raise ValueError(f"the filters read {channels} channels, which are no colours")
    return components, explained


def _show_filters(found, subject):
    title = "Principal components of the filters"
    return [(draw.filter_figure(*found, title), title)]


def _positions(subject):
    return position_similarity(subject.model)


def _show_positions(similarity, subject):
    title = "Cosine similarity of the position embeddings"
    return [(draw.position_figure(similarity, title), title)]


def _similarity(subject):
    images, _, _ = next(_seen(subject))
    return patch_similarity(subject.model, images[:1])[0]


def _show_similarity(similarity, subject):
    _, pixels, names = next(subject.groups())
    sides = similarity.shape[:2]
    cells = [tuple(side * part // 4 for side in sides) for part in (1, 2, 3)]
    title = f"Patch similarity: {names[0]}"
    return [(draw.similarity_figure(pixels[0], similarity, [*dict.fromkeys(cells)], title), title)]


def _seen(subject):
    if not subject.images:
        raise ValueError("there are no images to look at")
    return subject.groups()


VIEWS = {
    "rollout": View(
        "Attention rollout",
        "Attention followed back from the last block to the patches (Abnar and Zuidema 2020), without what "
        "the MLPs do. Images are drawn as the model reads them, after its preprocessing.",
        _rollout,
        _show_rollout,
    ),
    "heads": View(
        "Attention of each head",
        "The attention of each head of one block in the first image.",
        _heads,
        _show_heads,
    ),
    "distances": View(
        "Attention distance",
        "The mean distance between a patch and the patches it attends to, in pixels, over the images shown. "
        "Heads with a small distance act like a convolution.",
        _distances,
        _show_distances,
    ),
    "filters": View(
        "Patch filters",
        "The principal components of the patch embedding's filters. After long training they resemble a "
        "basis for the fine structure of a patch; after short training, noise.",
        _filters,
        _show_filters,
    ),
    "positions": View(
        "Position embeddings",
        "The cosine similarity of each position embedding to all others, a map for each position. Where "
        "neighbours, rows and columns are similar, the embeddings represent the image's two dimensions.",
        _positions,
        _show_positions,
    ),
    "similarity": View(
        "Patch similarity",
        "The cosine similarity of the output tokens of marked patches to all others of the first image.",
        _similarity,
        _show_similarity,
    ),
}
