"""Averages of the weights of several models: model soups."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.layers.dense import STATE
from keras_vit.models.backbones import backbone
from keras_vit.models.vit.schema import OPTIONS
from keras_vit.rules import integer, number, optional
from keras_vit.types import Path
from keras_vit.weights.checkpoint import lazy_arrays, read_model
from keras_vit.writing import file_sha256

if TYPE_CHECKING:
    import keras

MODEL = "model.keras"  # of a finished run
# Entries of configurations that may differ: they have no effect on inference in float32.
_MAY_DIFFER = {
    *("name", "trainable", "dtype", "split_seed", "pretraining", *STATE),
    *(name for name, option in OPTIONS.items() if option.metadata["group"] == "training"),
}
_LONGEST = 60  # characters of a value in a message


def average_models(
    sources: Sequence[Path], weights: Sequence[float] | None = None, *, split_seed: int | None = None
) -> keras.Model:
    """The mean of several models, weight by weight: a uniform model soup.

    The models should be trained from the same start, such as one pretrained checkpoint: the mean of models
    that were initialized differently is no useful model, which only an evaluation shows.

    The mean is computed in float64 and does not depend on the order of the models. Weights are read one after
    another, so that memory holds two models, however many are averaged. Moving averages, such as those of the
    batch norms in heads with `head_norm="batch"`, are averaged like other weights, and so are only
    approximately those of the mean.

    Args:
        sources: Two or more folders of finished runs, or `.keras` files, of models of any kind with equal
            options. Options that have no effect on inference, such as rates of dropout, may differ.
        weights: The positive number of each model to which its part in the mean is proportional; None for
            equal parts.
        split_seed: Seed of the split of the training data, if it differs between the models; None: theirs.

    Returns:
        A model of their class, in float32, without dropout.

    Raises:
        ValueError: for other sources, the same file twice, quantized models or LoRA factors, models that
            differ, with the first option that does, or NaN and infinity in a weight. Also for models trained
            on splits by different seeds, whose held-out images another of them has seen, unless `split_seed`
            is given.

    Example:
        >>> model = keras_vit.VisionTransformer(32, 8, 24, 1, 48, 3, num_classes=10)
        >>> model.save(tmp / "a.keras")
        >>> _ = model.get_layer("head").bias.assign(np.ones(10))
        >>> model.save(tmp / "b.keras")
        >>> soup = average_models([tmp / "a.keras", tmp / "b.keras"], [0.75, 0.25])
        >>> float(soup.get_layer("head").bias[0])
        0.25

    Source: Wortsman et al. 2022, "Model soups" (arXiv 2203.05482), section 2, "uniform soup".
    """
    files = ModelFiles(sources, split_seed)
    return files.average(range(len(files)), weights)


def greedy_soup(
    sources: Sequence[Path] | ModelFiles,
    score: Callable[[keras.Model], float],
    *,
    higher_is_better: bool = True,
    split_seed: int | None = None,
) -> tuple[keras.Model, list[dict[str, Any]]]:
    """The mean of those models that make its score no worse: a greedy model soup.

    The models are sorted by their scores. The soup begins with the best; each other one is added if the score
    of the mean with it is no worse than that of the soup so far.

    Args:
        sources: As for `average_models`, or `ModelFiles`.
        score: A function from a model to its score on held-out data. It gets the same model each time, with
            other weights.
        higher_is_better: Whether a higher score is better.
        split_seed: As for `average_models`.

    Returns:
        (model, decisions): a model as of `average_models`, and for each source, by decreasing score, a dict
        of its `index` among the sources, its own `score`, the `score_with_it` of the soup so far with it
        (None for the first), and whether it was `kept`.

    Raises:
        ValueError: as `average_models`, or if a score is no finite number.

    Example:
        >>> model = keras_vit.VisionTransformer(32, 8, 24, 1, 48, 3, num_classes=10)
        >>> for number in range(3):
        ...     _ = model.get_layer("head").bias.assign(np.full(10, number))
        ...     model.save(tmp / f"{number}.keras")
        >>> def score(model):
        ...     return -abs(float(model.get_layer("head").bias[0]) - 0.6)
        >>> soup, decisions = greedy_soup([tmp / "0.keras", tmp / "1.keras", tmp / "2.keras"], score)
        >>> [(row["index"], row["kept"]) for row in decisions], float(soup.get_layer("head").bias[0])
        ([(1, True), (0, True), (2, False)], 0.5)

    Source: Wortsman et al. 2022, "Model soups" (arXiv 2203.05482), recipe 1.
    """
    files = sources if isinstance(sources, ModelFiles) else ModelFiles(sources, split_seed)
    sign = 1 if higher_is_better else -1

    def scored(indices):
        value = score(files.average(indices))
        try:
            is_finite = math.isfinite(value)
        except TypeError:
            is_finite = False
        if not is_finite:
            names = ", ".join(repr(files.names[index]) for index in indices)
            raise ValueError(f"expected a score that is a finite number; got {value} for {names}")
        return value

    scores = [scored([index]) for index in range(len(files))]
    best, *others = sorted(range(len(files)), key=lambda index: (-sign * scores[index], files.digests[index]))
    kept, soup = [best], scores[best]
    decisions = [{"index": best, "score": soup, "score_with_it": None, "kept": True}]
    for index in others:
        with_it = scored([*kept, index])
        is_kept = bool(sign * with_it >= sign * soup)
        if is_kept:
            kept, soup = [*kept, index], with_it
        decisions.append({"index": index, "score": scores[index], "score_with_it": with_it, "kept": is_kept})
    return files.average(kept), decisions


class ModelFiles:
    """Several models of equal options in files, and one model in memory that gets the mean of some of them.

    Args:
        sources, split_seed: As for `average_models`.

    Attributes:
        names: The sources, as str.
        digests: The SHA-256 of each file.
        model: The model in memory.

    Raises:
        ValueError: as `average_models`.
    """

    def __init__(self, sources, split_seed=None):
        optional(integer(at_least=0)).check("split_seed", split_seed)
        self.names = [os.fspath(source) for source in sources]
        if len(self.names) < 2:
            raise ValueError(f"expected two models or more; got {len(self.names)}")
        paths = [_path_of(name) for name in self.names]
        self.digests = [file_sha256(path) for path in paths]
        for index, digest in enumerate(self.digests):
            first = self.digests.index(digest)
            if first < index:
                names = f"{self.names[first]!r} and {self.names[index]!r}"
                raise ValueError(f"expected different models; got the same file as {names}")
        self._models, self._arrays = zip(*map(_stored, paths, self.names))
        for name, other in zip(self.names, self._models):
            _check_equal(self._models[0], other, self.names[0], name)
        seed = self._split_seed() if split_seed is None else split_seed
        self.model = read_model(paths[0], self._models[0].kind).finished(self._arrays[0])
        for part in (self.model, backbone(self.model)):
            if hasattr(part, "split_seed"):
                part.split_seed = seed

    def __len__(self):
        return len(self.names)

    def average(self, indices, weights=None):
        """Set the weights of the model in memory to the mean of some models, and return it.

        Args:
            indices: Those of the sources.
            weights: As for `average_models`, for these models.
        """
        parts = check_weights(weights, len(indices))
        parts = [part / max(parts) for part in parts]  # Products and sums then neither overflow nor vanish.
        # In one order, which the rounding of sums depends on.
        chosen = sorted(zip(indices, parts), key=lambda pair: self.digests[pair[0]])
        # Paths may begin with the name of the model, and differ between the files.
        positions = {weight.path: position for position, weight in enumerate(self._models[0].weights)}
        for variable in self.model.weights:
            mean = np.zeros(variable.shape, "float64")
            for index, part in chosen:
                mean += part * self._array(index, positions[variable.path])
            variable.assign((mean / math.fsum(parts)).astype("float32"))
        return self.model

    def _array(self, index, position):
        """A weight of a file in float64, after a check for NaN and infinity."""
        path = self._models[index].weights[position].path
        array = np.asarray(self._arrays[index][path]).astype("float64")
        if not np.isfinite(array).all():
            raise ValueError(f"expected finite weights; {self.names[index]!r} has NaN or infinity in {path}")
        return array

    def _split_seed(self):
        names = {}  # of a model by the seed that it was trained with
        for name, model in zip(self.names, self._models):
            own, backbone_seed = model.split_seed, backbone(model).split_seed
            names.setdefault(backbone_seed if own is None else own, name)
        names.pop(None, None)
        if len(names) > 1:
            seeds = [f"seed {seed} of {name!r}" for seed, name in names.items()]
            raise ValueError(
                f"expected models trained on one split; got {' and '.join(seeds[:2])}: give the seed if the "
                "data set has its own validation and test splits"
            )
        return next(iter(names), None)


def check_weights(weights, count):
    """The weights of `count` models in a mean, as a list.

    >>> check_weights(None, 2), check_weights((0.4, 0.6), 2)
    ([1.0, 1.0], [0.4, 0.6])
    """
    weights = [1.0] * count if weights is None else [*weights]
    if len(weights) != count:
        raise ValueError(f"expected a weight for each of the {count} models; got {len(weights)}")
    for weight in weights:
        number(above=0).check("weights", weight)
    return weights


def _path_of(name):
    path = pathlib.Path(name).expanduser()
    path = path / MODEL if path.is_dir() else path
    if path.suffix != ".keras" or not path.is_file():
        raise ValueError(f"expected the folder of a finished run, or a .keras file; got {name!r}")
    return path


def _stored(path, name):
    """(the model of a file without values, its arrays by path)."""
    model, arrays = lazy_arrays(path, part=lambda whole: whole)
    if arrays is None:
        raise ValueError(
            f"{name!r} is quantized or has LoRA factors; expected float weights, into which merge_lora() "
            "merges factors"
        )
    return model, arrays


def _check_equal(model, other, name, other_name):
    """Raise ValueError, with the first difference, unless two models have equal options."""
    options, other_options = (
        {"class": type(of).__name__, **_options(of.get_config())} for of in (model, other)
    )
    for option in {**options, **other_options}:
        value, other_value = options.get(option), other_options.get(option)
        if value == other_value:
            continue
        if _is_long(value) and _is_long(other_value) and len(value) == len(other_value):
            index = next(i for i, pair in enumerate(zip(value, other_value)) if pair[0] != pair[1])
            option, value, other_value = f"{option}[{index}]", value[index], other_value[index]
        values = f"is {value!r} in {name!r} and {other_value!r} in {other_name!r}"
        if max(len(repr(value)), len(repr(other_value))) > _LONGEST:  # as of tokenizers
            values = f"differs between {name!r} and {other_name!r}"
        raise ValueError(f"expected models with equal options; {option} {values}")


def _is_long(value):
    return isinstance(value, tuple | list) and len(value) > 4


def _options(config, prefix=""):
    """The entries of a nested configuration that must be equal, by names such as "encoder.hidden_size"."""
    options = {}
    for name, value in config.items():
        if name not in _MAY_DIFFER:
            is_nested = isinstance(value, dict)
            options |= _options(value, f"{prefix}{name}.") if is_nested else {prefix + name: value}
    return options
