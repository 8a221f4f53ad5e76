"""Through a model one block at a time, with a bound on the attention scores that are read at a time."""

import itertools
import numbers

import keras

from keras_vit.layers.attention import attention_scores as scores_of
from keras_vit.layers.attention import query_stretches
from keras_vit.layers.patch_embedding import check_divisible
from keras_vit.models.arguments import grid_of, is_free, stem_stride
from keras_vit.models.vit import VisionTransformer

# Bytes of scores at a time. One block of B/16 has 800 MB of them for one image of 1,024 pixels.
STRETCH = 64 * 2**20


def check_model(model):
    """Raise ValueError unless this is a VisionTransformer, whose layers can be looked into."""
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"only a VisionTransformer can be looked into; got {type(model).__name__} "
            "(of an export or a copy, take the VisionTransformer that it was made from)"
        )


def check_images(model, images):
    """Raise ValueError unless the model is a VisionTransformer and these are input for it."""
    check_model(model)
    shape = tuple(getattr(images, "shape", ()))
    free = is_free(model.image_size)
    wanted = (*(shape[1:3] if free else model.image_size), model.in_channels)
    if len(shape) != 4 or shape[1:] != wanted:
        height, width = ("height", "width") if free else model.image_size
        raise ValueError(
            f"images must be an array of shape (batch, {height}, {width}, {model.in_channels}), as "
            f"model.preprocessing makes them; got {shape or type(images).__name__}"
        )
    stride = stem_stride(model.resnet)
    check_divisible([-(-side // stride) for side in shape[1:3]], model.patch_size)


def blocks_of(model):
    """The encoder's blocks; ValueError if there are none."""
    check_model(model)
    if model.num_layers is None:
        raise ValueError("the model has 0 blocks, and nothing else whose attention could be shown")
    return [model.get_layer(f"encoder_block_{i}") for i in range(model.num_layers)]


def is_whole(number):
    """Whether this counts something: 1.0 and True, which are equal to 1, do not."""
    return isinstance(number, numbers.Integral) and not isinstance(number, bool)


def patch_grid(model, images):
    """(rows, columns) of the patches that the model cuts these images into."""
    return grid_of(images.shape[1:3], model.patch_size, model.resnet)


def walk(model, images):
    """Yield the tokens before each block, each computed when it is asked for, then those behind the last.

    Args:
        model: A `VisionTransformer` with an encoder.
        images: Model input (batch, height, width, channels).

    Yields:
        Tensors (batch, tokens, channels).

    Raises:
        ValueError: if the model has no encoder, or the images do not fit it.

    Example:
        >>> [tokens.shape for tokens in walk(model, images)]
        [TensorShape([4, 17, 24]), TensorShape([4, 17, 24])]
    """
    blocks = blocks_of(model)
    check_images(model, images)
    x = keras.Model(model.input, blocks[0].input)(images)
    yield x
    for block in blocks:
        x = block(x)
        yield x


def tokens_at(model, images, number):
    """The tokens before block `number`, or with the number of blocks those behind the last."""
    return next(itertools.islice(walk(model, images), number, None))


def as_read(model, tokens):
    """What the pooling reads, stage `tokens`, of the tokens behind the last block."""
    return tokens if model.norm_after_pooling else model.get_layer("encoder_norm")(tokens)


def stretches(attention, tokens, first=0):
    """Yield a layer's scores for some queries at a time.

    Args:
        attention: A `MultiHeadSelfAttention`.
        tokens: (batch, tokens, channels), as the layer gets them.
        first: Where the queries begin; those before it are left out.

    Yields:
        (slice of the queries, their scores (batch, heads, queries, tokens)); the scores take at most
        `STRETCH` bytes, or those of one query.

    Example:
        >>> layer = model.get_layer("encoder_block_0").attention
        >>> [(part, scores.shape) for part, scores in stretches(layer, np.zeros((1, 17, 24)), first=1)]
        [(slice(1, 17, None), TensorShape([1, 3, 16, 17]))]
    """
    query, key = attention.query(tokens), attention.key(tokens)
    batch, count, heads, _ = query.shape
    for part in query_stretches(count - first, count, STRETCH // (4 * max(batch, 1) * heads)):
        part = slice(first + part.start, first + part.stop)
        yield part, scores_of(query[:, part], key)
