"""A model in the operations that all delegates of LiteRT compute."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_vit import layers
from keras_vit.layers.attention import Projection, attend
from keras_vit.layers.dense import Dense
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.segmentation_head import ResizeToImage, SemanticScores, resize
from keras_vit.types import Tensor

_SQUARE_SCALE = 2.0**-6  # of the squares in a norm


def litert_form(model: keras.Model) -> None:
    """Change a model's layers to the form that LiteRT's delegates compute, with the same outputs.

    On CPUs LiteRT computes with XNNPACK, on GPUs with ML Drift. Tensors of ML Drift have at most four axes,
    the first of which is the batch; it does not notice that the rows of all images in one matrix, as the live
    layers multiply them, are no batch, and its outputs are wrong then.

    Args:
        model: A `VisionTransformer` or an `ImageSegmenter` for this purpose only, since its layers and
            weights are changed. The logits of a segmenter get more channels, see `_padded_classes`, and those
            of "mask" are probabilities then.

    Example:
        >>> copy = keras_vit.VisionTransformer.from_config(model.get_config())
        >>> copy.set_weights(model.get_weights())
        >>> litert_form(copy)
        >>> bool(np.allclose(copy(images), model(images), atol=1e-6))
        True
    """
    for layer in model._flatten_layers():
        for method, form in FORMS.get(type(layer), {}).items():
            setattr(layer, method, functools.partial(form, layer))
        if isinstance(layer, layers.MultiHeadSelfAttention) and layer.rotation == "interleaved":
            _rotate_halves(layer)


def _patches(layer: layers.PatchEmbedding, images: Tensor) -> Tensor:
    """A convolution: cutting patches takes six axes."""
    if p := layer.padding:
        images = tf.pad(images[:, :-p, :-p], ((0, 0), (p, 0), (p, 0), (0, 0)))
    x = tf.nn.conv2d(images, layer.kernel, layer.patch_size, "VALID")  # crops, too
    return x + layer.bias if layer.use_bias else x


def _palette(layer: layers.PaletteEmbedding, images: Tensor) -> Tensor:
    """Distances as sums over the channels, and the vector of the nearest color as a matmul.

    A matmul with the colors would round them to 8 bits, which cannot distinguish near ones, and ML Drift has
    no operation that reads rows of a table.
    """
    batch, height, width, channels = images.shape
    pixels = tf.reshape(images, (batch, height * width, channels))
    colors = tf.convert_to_tensor(layer.palette)
    near = 0.0
    for part in _in_float16(2 * colors):
        near += sum(pixels[..., i : i + 1] * part[:, i] for i in range(channels))
    for part in _in_float16(tf.reduce_sum(tf.square(colors), axis=-1)):
        near -= part  # (b, n, k)
    nearest = tf.argmax(_padded_classes(near), axis=-1, output_type=tf.int32)
    nearest = tf.cast(tf.reshape(nearest, (batch, height * width, 1)), tf.float32)
    is_nearest = tf.greater(0.5, tf.square(nearest - np.arange(layer.colors, dtype="float32")))
    x = tf.matmul(tf.cast(is_nearest, tf.float32), layer.table)
    return tf.reshape(x, (batch, height, width, layer.hidden_size))


def _in_float16(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors with the sum x, which a file in float16 holds almost exactly."""
    rounded = tf.cast(tf.cast(x, tf.float16), tf.float32)
    return rounded, x - rounded


def _dense(layer: Dense, x: Tensor, training: bool | None = None) -> Tensor:
    """A matmul of each image's rows."""
    x = tf.matmul(x, layer.kernel)
    return layer.activation(x if layer.bias is None else x + layer.bias)


def _projection(layer: Projection, x: Tensor, training: bool | None = None) -> Tensor:
    """The same between channels and heads."""
    batch, tokens, *contracted = x.shape
    kept = layer.kernel.shape[len(contracted) :]
    inputs = int(np.prod(contracted))
    x = tf.matmul(tf.reshape(x, (batch, tokens, inputs)), tf.reshape(layer.kernel, (inputs, -1)))
    x = x if layer.bias is None else x + tf.reshape(layer.bias, (-1,))
    return layer.activation(tf.reshape(x, (batch, tokens, *kept)))


def _mlp(layer: layers.MlpBlock, tokens: Tensor, training: bool | None = None) -> Tensor:
    """The MLP without merging the rows of all images."""
    return layer.transform(tokens)


def _convolution(layer: layers.StdConv2D, x: Tensor) -> Tensor:
    """A slice before a 1×1 convolution with strides, which ML Drift ignores if the kernel is of int8."""
    if layer.kernel_size != (1, 1):
        return type(layer).call(layer, x)
    rows, columns = layer.strides
    return tf.nn.conv2d(x[:, ::rows, ::columns], layer.standardized(layer.kernel), 1, "VALID")


def _probe_scores(layer: layers.AttentionPooling, tokens: Tensor) -> Tensor:
    """The scores as one matmul: the probe's query is a constant, which ML Drift has on the right only."""
    attention = layer.attention
    query = attention.query(tf.convert_to_tensor(layer.probe))  # (1, 1, heads, head size)
    query = query[0, 0] * query.shape[-1] ** -0.5
    logits = tf.matmul(tokens, tf.einsum("chd,hd->ch", attention.key.kernel, query))  # (batch, tokens, heads)
    if attention.key.bias is not None:
        logits += tf.einsum("hd,hd->h", attention.key.bias, query)
    return tf.expand_dims(tf.nn.softmax(tf.transpose(logits, (0, 2, 1))), 2)  # (batch, heads, 1, tokens)


def _attention_pooling(layer: layers.AttentionPooling, tokens: Tensor, bias: Tensor | None = None) -> Tensor:
    """Pooling with these scores; packed patches, which have a bias, are refused before."""
    attention = layer.attention
    x = attention.out(attend(layer.scores(tokens), attention.value(tokens)))  # (batch, 1, channels)
    x = x + layer.mlp(layer.mlp_norm(x))
    return tf.reshape(x, (x.shape[0], x.shape[2]))


def _layer_norm(layer: LayerNormalization, x: Tensor) -> Tensor:
    """The square as a product: a squared difference of int8 has no fast kernel on CPUs.

    A power of two keeps the squares of values up to 2047 in the range of float16: DINOv2's tokens have 800.
    """
    x = x - tf.reduce_mean(x, -1, keepdims=True)
    squares = (x * _SQUARE_SCALE) * x
    scale = tf.math.rsqrt(tf.reduce_mean(squares, -1, keepdims=True) + layer.epsilon * _SQUARE_SCALE)
    return x * scale * (layer.gamma * _SQUARE_SCALE**0.5) + layer.beta


def _unit_norm(layer: keras.layers.UnitNormalization, x: Tensor) -> Tensor:
    """The mean of the squares, since ML Drift has no sum and no minimum."""
    mean = tf.reduce_mean(x * x, -1, keepdims=True)
    return x * tf.math.rsqrt(mean * x.shape[-1] + keras.config.epsilon() ** 2)


def _group_norm(layer: keras.layers.GroupNormalization, x: Tensor) -> Tensor:
    """Keras's groups are a fifth axis."""
    batch, height, width, channels = x.shape
    grouped = tf.reshape(x, (batch, height * width, layer.groups, channels // layer.groups))
    grouped = grouped - tf.reduce_mean(grouped, (1, 3), keepdims=True)
    variance = tf.reduce_mean(tf.square(grouped), (1, 3), keepdims=True)
    grouped = grouped * tf.math.rsqrt(variance + layer.epsilon)
    return tf.reshape(grouped, x.shape) * layer.gamma + layer.beta


def _padded_classes(scores: Tensor) -> Tensor:
    """Scores with the first classes repeated until the classes are a multiple of four; not of one value.

    ML Drift stores channels in fours and fills them up with 0, which its argmax takes for scores of classes.
    Of equal scores, argmax takes the first. ML Drift cannot repeat a single channel.
    """
    missing = -scores.shape[-1] % 4 if scores.shape[-1] > 1 else 0
    return tf.concat([scores] + [scores[..., :1]] * missing, axis=-1) if missing else scores


def _resize_to_image(layer: ResizeToImage, grid: Tensor, images: Tensor) -> Tensor:
    return resize(_padded_classes(grid), images.shape[1:3])


def _semantic_scores(layer: SemanticScores, masks: Tensor, classes: Tensor, images: Tensor) -> Tensor:
    """Without the logarithm, which does not change the order of the classes.

    ML Drift computes products of tensors with different numbers of axes wrongly, and the converter removes a
    reshape to three axes; hence an axis of one matrix.
    """
    batch, height, width, _ = images.shape
    inside = tf.sigmoid(resize(masks, (height, width)))
    inside = tf.reshape(inside, (batch, 1, height * width, inside.shape[-1]))
    probabilities = tf.expand_dims(_padded_classes(tf.nn.softmax(classes)[..., :-1]), 1)
    scores = tf.matmul(inside, probabilities)
    return tf.reshape(scores, (batch, height, width, scores.shape[-1]))


# The methods that a layer of exactly this class gets in place of its own.
FORMS: dict[type[keras.Layer], dict[str, Callable[..., Tensor]]] = {
    layers.PaletteEmbedding: {"call": _palette},
    layers.PatchEmbedding: {"call": _patches},
    Dense: {"call": _dense},
    Projection: {"call": _projection},
    layers.MlpBlock: {"call": _mlp},
    layers.StdConv2D: {"call": _convolution},
    layers.AttentionPooling: {"call": _attention_pooling, "scores": _probe_scores},
    ResizeToImage: {"call": _resize_to_image},
    SemanticScores: {"call": _semantic_scores},
    LayerNormalization: {"call": _layer_norm},
    keras.layers.GroupNormalization: {"call": _group_norm},
    keras.layers.UnitNormalization: {"call": _unit_norm},
}


def _rotate_halves(attention: layers.MultiHeadSelfAttention) -> None:
    """Let the pairs of channels that are rotated be j and j + head size / 2 instead of 2j and 2j + 1.

    Their scores are sums over the channels in whatever order.
    """
    for part in (attention.query, attention.key, attention.query_norm, attention.key_norm):
        for weight in part.weights if part else ():
            values = weight.numpy()
            weight.assign(np.concatenate([values[..., 0::2], values[..., 1::2]], axis=-1))
    attention.rotation = "half"
