"""DINO: self-distillation of views of the same image."""

import dataclasses

import numpy as np

from keras_vit import data
from keras_vit.data.augmentation.options import Augmentation
from keras_vit.models.vit.geometry import patch_pixels
from keras_vit.tasks.pretraining.dino import DINO
from keras_vit.tasks.pretraining.pictures import Pictures, Pretraining

_USED = ("crop_area", "flip", "photometric")  # of the fields of `Augmentation`


class DinoTask(Pretraining):
    """Self-distillation, scored by the labels of the nearest training images, if there are labels.

    The recipe's `crop_area` is that of the global views, `photometric` the probability of changes of colors;
    see `data.view_augmentation`.

    Raises:
        ValueError: for a recipe with labels of another kind than single ones, other random changes, frozen
            layers or averaged weights.

    Source: Caron et al. 2021 (DINO, arXiv 2104.14294).
    """

    name = "dino"
    validation_metric = "knn_accuracy"
    higher_is_better = True
    model = DINO

    def __init__(self, config):
        super().__init__(config)
        recipe = config.recipe
        unused = [each.name for each in dataclasses.fields(Augmentation) if each.name not in _USED]
        refused = [name for name in (*unused, "freeze", "ema") if getattr(recipe, name)]
        if refused or recipe.task != "single_label" or recipe.crop_area is None:
            raise ValueError(
                "objective 'dino': expected single labels, a crop_area, and no other change of images, "
                f"freeze or ema; got task {recipe.task!r}, crop_area {recipe.crop_area} and "
                f"{', '.join(refused) or 'none of these'}"
            )

    def around(self, model, config, dataset):
        if config.recipe.patience and not dataset.class_names:
            raise ValueError(
                "patience counts validations by the labels of neighbors: expected images with classes, or "
                f"patience=None; got images without labels and patience={config.recipe.patience}"
            )
        return super().around(model, config, dataset)

    def augment(self, recipe, model, preprocessing, exif):
        return data.view_augmentation(
            preprocessing,
            recipe.crop_area,
            model.local_area,
            model.num_local,
            model.local_size,
            recipe.flip,
            recipe.photometric,
            exif,
        )

    def validate(self, encoder, dataset, recipe):
        return _knn(encoder, dataset, "validation")

    def test(self, model, finished, dataset, recipe):
        scores = _knn(finished, dataset, "test")
        return scores and {**scores, "samples": len(dataset.split("test"))}

    def figures(self, model, images):
        """The images, and for each head of the last block the attention to their patches."""
        from keras_vit import inspection  # needs scikit-learn

        colors = model.encoder.preprocessing.colors(images)
        maps = inspection.attention_maps(model.encoder, images)  # (b, heads, rows, columns)
        maps = maps / maps.max(axis=(2, 3), keepdims=True)
        height, width = patch_pixels(model.encoder)
        maps = maps.repeat(height, axis=2).repeat(width, axis=3)[..., np.newaxis]
        heads = {f"head {n}": np.broadcast_to(maps[:, n], colors.shape) for n in range(maps.shape[1])}
        has_token = model.encoder.pooling in ("token", "token_gap")
        subject = "The attention of the class token" if has_token else "The mean attention of all patches"
        text = f"{subject} to the patches in each head of the last block, relative to its maximum."
        if has_token:
            text += " Without labels, it tends to follow the objects."
        return [Pictures("Attention", text, {"image": colors, **heads})]


def _knn(encoder, dataset, split):
    if not dataset.class_names:
        return {}
    from keras_vit import evaluation  # needs TensorFlow

    return {"knn_accuracy": evaluation.knn(encoder, dataset.split("train"), dataset.split(split))}
