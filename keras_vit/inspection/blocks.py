"""The inputs of a model's blocks, one block at a time, and attention scores in chunks of bounded memory."""

import itertools
import numbers

import keras

from keras_vit.layers.attention import query_chunks
from keras_vit.models.backbones import inner_transformer, is_transformer
from keras_vit.models.vit.geometry import grid_shape, is_dynamic, patch_pixels
from keras_vit.preprocessing.inputs import is_raw

# Bytes of scores held at a time. One block of B/16 has 800 MB of them for one image of 1,024 pixels.
CHUNK_BYTES = 64 * 2**20


def check_model(model):
    """Raise ValueError unless this is a VisionTransformer, whose layers can be inspected."""
    inner = inner_transformer(model)
    if inner is not model or not is_transformer(model):
        whole = "the VisionTransformer that an export or copy was made from"
        advice = whole if inner is model else f"its `{model.backbone_argument}`"
        raise ValueError(f"expected a VisionTransformer; got {type(model).__name__} (inspect {advice})")


def model_input(model, images):
    """Model input of images, which may be model input already: floats, an array or tensor.

    Args:
        model: A `VisionTransformer`.
        images: What `model.preprocessing` takes, or what it returns.

    Returns:
        An array or tensor (batch, height, width, channels).

    Raises:
        ValueError: if the model is none, packs patches, or the images do not fit it or cannot be read.

    Example:
        >>> x = model_input(model, np.zeros((40, 50, 3), "uint8"))
        >>> x.shape, model_input(model, x) is x
        ((1, 32, 32, 3), True)
    """
    check_model(model)
    model.check_one_size("inspection")
    images = model.preprocessing(images) if is_raw(images) else images
    shape = tuple(getattr(images, "shape", ()))
    sides = shape[1:3] if is_dynamic(model.image_size) else model.image_size
    if len(shape) != 4 or shape[1:] != (*sides, model.in_channels):
        height, width = ("height", "width") if is_dynamic(model.image_size) else model.image_size
        raise ValueError(
            f"expected images of shape (batch, {height}, {width}, {model.in_channels}), from "
            f"model.preprocessing; got {shape or type(images).__name__}"
        )
    return images


def blocks_of(model):
    """Return the encoder's blocks; raise ValueError if there are none."""
    check_model(model)
    if model.num_layers is None:
        raise ValueError("the model has 0 blocks and no attention")
    return [model.get_layer(f"encoder_block_{i}") for i in range(model.num_layers)]


def is_integer(number):
    """Whether this is an integer; 1.0 and True are not."""
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def block_index(model, block=None):
    """Return the index of a block from 0, of an index that may be negative, or None for the last block."""
    count, index = len(blocks_of(model)), -1 if block is None else block
    if not is_integer(index) or not -count <= index < count:
        raise ValueError(f"block {index} is out of range: the model has {count} blocks")
    return index % count


def patch_grid(model, images):
    """Return (rows, columns) of the patches that the model divides these images into."""
    size = images.shape[1:3]
    if is_dynamic(model.image_size):  # The model resizes images to whole patches.
        size = [-(-side // patch) * patch for side, patch in zip(size, patch_pixels(model))]
    return grid_shape(size, model.patch_size, model.resnet)


def walk(model, images):
    """Yield each block with its input, computed when it is requested, and its positions or None.

    Last comes None with the output of the last block, and None.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: Model input (batch, height, width, channels).

    Yields:
        (layer, tensor (batch, tokens, channels), positions).

    Raises:
        ValueError: if the model has no encoder.

    Example:
        >>> [tokens.shape for _, tokens, _ in walk(model, images)]
        [TensorShape([4, 17, 24]), TensorShape([4, 17, 24])]
    """
    blocks = blocks_of(model)
    tokens, *positions = zip(*(keras.tree.flatten(block.input) for block in blocks))
    inputs = [tokens[0], *(each for same in positions for each in same)]
    x, *positions = keras.tree.flatten(keras.Model(model.input, inputs)(images))
    for block, inputs in itertools.zip_longest(blocks, positions):
        yield block, x, inputs
        x = block(x, inputs)
    yield None, x, None


def input_of_block(model, images, index):
    """Return the input of block `index`, or with the number of blocks the output of the last."""
    _, tokens, _ = next(itertools.islice(walk(model, images), index, None))
    return tokens


def pooling_input(model, tokens):
    """Return stage `tokens`, which the pooling reads, from the output of the last block."""
    if model.norm_after_pooling or not model.final_norm:
        return tokens
    return model.get_layer("encoder_norm")(tokens)


def score_chunks(attention, tokens, positions=None, first=0):
    """Yield a layer's attention scores for some queries at a time.

    Args:
        attention: A `MultiHeadSelfAttention`.
        tokens: (batch, tokens, channels), the layer's input.
        positions: Those that the block is given, or None.
        first: Index of the first query.

    Yields:
        (slice of the queries, their scores (batch, heads, queries, tokens)); the scores take at most
        `CHUNK_BYTES`, but a slice has at least one query.

    Example:
        >>> layer = model.get_layer("encoder_block_0").attention
        >>> [(chunk, scores.shape) for chunk, scores in score_chunks(layer, np.zeros((1, 17, 24)), first=1)]
        [(slice(1, 17, None), TensorShape([1, 3, 16, 17]))]
    """
    query, key, _ = attention.project(tokens, positions=positions)
    batch, count, heads, _ = query.shape
    for chunk in query_chunks(count - first, count, CHUNK_BYTES // (4 * max(batch, 1) * heads)):
        chunk = slice(first + chunk.start, first + chunk.stop)
        yield chunk, attention.chunk_scores(query[:, chunk], key, chunk, positions)
