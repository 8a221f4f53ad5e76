"""Masked autoencoders in checkpoints: the arrays and options of the decoder, read and written."""

import re

import numpy as np
from keras import ops

from keras_vit.layers import sincos_2d
from keras_vit.models.vit.geometry import grid_shape
from keras_vit.weights.architecture import shape_of
from keras_vit.weights.array_files import check_unpacked_size
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.decoder import POSITIONS, DecoderForm
from keras_vit.weights.layouts.heads import split_heads
from keras_vit.weights.shards import stored_size
from keras_vit.weights.stored_parts import StoredParts


def read_decoder(checkpoint, others, folder=None):
    """Read the decoder of a checkpoint.

    Args:
        checkpoint: `StoredModel` of the encoder, to which the decoder's arrays are added.
        others: dict of the arrays by the file's keys that do not belong to the encoder.
        folder: pathlib.Path of the file's folder, or None if its configuration is not read.

    Returns:
        dict of `MaskedAutoencoder` arguments, without the encoder.

    Raises:
        ValueError: if the file holds no decoder, a damaged one, or one with other positions than MAE's.
    """
    form = LAYOUTS[checkpoint.layout].forms.get("masked_autoencoder") or DecoderForm([])
    mapped = form.table.read(others)
    arrays = mapped.arrays
    if "decoder_embedding/kernel" not in arrays:
        raise ValueError("it holds no decoder of a masked autoencoder")
    size = shape_of(arrays, "decoder_embedding/kernel", 2)[1]
    options = {**form.options(folder), "decoder_hidden_size": size}
    options["decoder_mlp_dim"] = shape_of(arrays, "decoder_block_0/mlp/dense_0/kernel", 2)[1]
    blocks = {int(match[1]) for name in arrays if (match := re.match(r"decoder_block_(\d+)/", name))}
    if blocks != {*range(len(blocks))}:
        raise ValueError(f"expected the decoder's blocks from 0 to {len(blocks) - 1}; got {sorted(blocks)}")
    options["decoder_num_layers"] = len(blocks)
    declared = len(blocks) * size * (4 * size + 2 * options["decoder_mlp_dim"])
    check_unpacked_size(4 * declared, stored_size(checkpoint.path))
    split_heads(mapped, {"hidden_size": size, "num_heads": options["decoder_num_heads"]})
    _check_positions(checkpoint, arrays, mapped.keys, size)
    checkpoint.add(mapped)
    return options


def _check_positions(checkpoint, arrays, keys, size):
    """Remove the stored positions of the decoder, which are fixed."""
    if POSITIONS not in arrays:
        return
    stored, key = arrays.pop(POSITIONS), keys.pop(POSITIONS)
    expected = _positions(checkpoint.arguments, size)
    tolerance = 1e-5 if stored.itemsize > 2 else 1e-2
    if stored.shape != expected.shape or np.abs(stored.astype("float32") - expected).max() > tolerance:
        raise ValueError(f"expected MAE's sines and cosines of the grid in {key}; got other positions")


def _positions(encoder, size):
    """The positions of the decoder as files store them, with a zero row for the class token."""
    rows, columns = grid_shape(encoder["image_size"], encoder["patch_size"], None)
    positions = ops.convert_to_numpy(sincos_2d(rows, columns, size, endpoint=False))
    return np.pad(positions, ((1, 0), (0, 0)))[np.newaxis]


class DecoderParts(StoredParts):
    """The parts of a `MaskedAutoencoder`: its encoder and its decoder.

    Fixed positions of the encoder are stored as a table, and its pooling has no effect.
    """

    form = "masked_autoencoder"
    missing = "the decoder of a masked autoencoder"
    pattern = re.compile(r"(decoder_\w+|mask_token|prediction)/.*")

    def split(self):
        arrays, config = super().split()
        if config["class_token"]:
            config["pooling"] = "token"
        if config["position_embedding"] == "sincos2d":
            grid = grid_shape(config["image_size"], config["patch_size"], config["resnet"])
            table = ops.convert_to_numpy(sincos_2d(*grid, config["hidden_size"]))
            prefix = self.model.encoder.num_prefix_tokens if config["prefix_positions"] else 0
            arrays["position_embedding/table"] = np.pad(table, ((prefix, 0), (0, 0)))[np.newaxis]
            config["position_embedding"] = "learned"
        self.others[POSITIONS] = _positions(self.model.encoder._config(), self.model.decoder_hidden_size)
        return arrays, config

    def hub_words(self):
        return "image-feature-extraction", "reconstruction of masked patches", ', kind="pretrainer"'
