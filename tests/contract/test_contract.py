"""Properties of every public layer and model; a class that is not in the table fails.

A case is a class, its constructor's arguments, and the shapes of its inputs without the batch, or a dict of
shapes.
"""

import functools
import inspect
import json
import re

import keras
import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import assert_close, float_weights, numpy, randomize, without_initial_values
from reference.small import DECODER, HEAD, HYBRID, NO_TRANSFORMER, PACKED, PIXELS, SMALL, TEXT

import keras_vit
from keras_vit import layers, preprocessing, variants
from keras_vit.layers import (
    aligned_resize,
    box_head,
    class_queries,
    convolution,
    depth_head,
    enlargement,
    segmentation_head,
)
from keras_vit.layers.attention import Projection
from keras_vit.layers.dense import Dense, EinsumDense
from keras_vit.layers.hints import Sharding
from keras_vit.models import preprocessed

TOKENS, GRID, IMAGE = (5, 8), (2, 3, 8), (16, 16, 3)


def integers(dtype):
    """A class of shapes of inputs of a dtype, by which `BOUNDS` finds their values."""
    return type("Shape", (tuple,), {"dtype": dtype})


# Places of tokens (-1 or 0), token ids, rows and columns of grids, and images.
Sources, Ids, Grids, Pixels = map(integers, ("int32", "uint16", "int16", "uint8"))
BOUNDS = {  # of random inputs
    **{"float32": (-1, 1), Sources.dtype: (-1, 1), Ids.dtype: (0, 11)},
    **{Grids.dtype: (1, 3), Pixels.dtype: (0, 256)},
}

POOLING = {"num_heads": 2, "mlp_dim": 12}
BLOCK = {  # The parts of a block are made anew for each.
    "attention_norm": functools.partial(layers.LayerNormalization, 1e-5, name="attention_norm"),
    "attention": functools.partial(layers.MultiHeadSelfAttention, 2, name="attention"),
    "mlp_norm": functools.partial(layers.LayerNormalization, 1e-5, name="mlp_norm"),
    "mlp": functools.partial(layers.MlpBlock, 12, name="mlp"),
}
LAYERS = [
    (layers.AddPositionEmbs, {"grid_size": (2, 2), "num_prefix_tokens": 1}, [TOKENS]),
    (layers.AddPositionEmbs, {"kind": "sincos2d", "grid_size": 2, "num_prefix_tokens": 1}, [TOKENS]),
    (layers.AddPositionEmbs, {"kind": "sincos2d", "grid_size": 2, "endpoint": False}, [(4, 8)]),
    (layers.AddPositionEmbs, {"grid_size": (3, 3)}, [(6, 8), GRID]),
    (layers.AttentionPooling, {**POOLING, "activation": "gelu_erf", "qkv_bias": False}, [TOKENS]),
    (layers.AttentionPooling, {**POOLING, "norm_epsilon": 1e-5}, [TOKENS, (1, 1, 5)]),
    (layers.ClassToken, {"num_tokens": 2, "initializer": "ones"}, [TOKENS]),
    (layers.EncoderBlock, {**BLOCK, "layer_scale": 0.1}, [TOKENS]),
    (layers.EncoderBlock, {**BLOCK, "dropout_rate": 0.1, "stochastic_depth_rate": 0.1}, [TOKENS]),
    (layers.GridToTokens, {}, [GRID]),
    (layers.LayerNormalization, {"epsilon": 1e-5}, [TOKENS]),
    (layers.LayerScale, {"value": 0.5}, [TOKENS]),
    (layers.LogitFactors, {"objective": "softmax"}, [(8,), (8,)]),
    (layers.MaskTokens, {"initializer": "ones"}, [TOKENS, Sources((5,))]),
    (layers.MaskTokens, {}, [TOKENS, Sources((7,))]),
    (layers.MlpBlock, {"mlp_dim": 12, "activation": "quick_gelu", "dropout_rate": 0.1}, [TOKENS]),
    (layers.MultiHeadSelfAttention, {"num_heads": 2, "qkv_bias": False, "norm_epsilon": 1e-5}, [TOKENS]),
    (layers.MultiHeadSelfAttention, {"num_heads": 4, "dropout_rate": 0.1}, [TOKENS, (3, 8)]),
    (
        layers.MultiHeadSelfAttention,
        {"num_heads": 4, "num_kv_heads": 2, "qk_norm": "rms", "sub_norm": "layer", "out_bias": False},
        [TOKENS],
    ),
    (layers.MlpBlock, {"mlp_dim": 12, "gated": True, "sub_norm": "rms", "norm_epsilon": 1e-5}, [TOKENS]),
    (layers.EncoderBlock, {**BLOCK, "post_norm": True, "layer_scale": 0.1, "scale_mlp": False}, [TOKENS]),
    (layers.EncoderBlock, {**BLOCK, "norm_after_residual": True}, [TOKENS]),
    (layers.RMSNormalization, {"epsilon": 1e-5}, [TOKENS]),
    (layers.PackedPositionEmbs, {"grid_size": (2, 3)}, [TOKENS, Grids((2,))]),
    (layers.PaddingBias, {}, [TOKENS, Grids((2,))]),
    (layers.MultiHeadSelfAttention, {"num_heads": 2, "causal": True}, [TOKENS]),
    (layers.PaletteEmbedding, {"hidden_size": 8, "colors": 7}, [GRID]),
    (layers.PatchEmbedding, {"hidden_size": 8, "patch_size": (8, 4), "use_bias": False}, [IMAGE]),
    (layers.PatchEmbedding, {"hidden_size": 8, "patch_size": (5, 6), "crop": True, "padding": 2}, [IMAGE]),
    (layers.PatchDropout, {"rate": 0.5, "num_prefix_tokens": 1, "seed": 1}, [TOKENS]),
    (layers.StartToken, {}, [TOKENS]),
    (convolution.Conv2D, {"filters": 4, "kernel_size": 3, "strides": 2, "use_bias": False}, [IMAGE]),
    (layers.StdConv2D, {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "same"}, [IMAGE]),
    (layers.StdConv2D, {"filters": 4, "kernel_size": 1, "epsilon": 0.0, "variance_epsilon": 1e-5}, [IMAGE]),
    (layers.StochasticDepth, {"rate": 0.3, "seed": 1}, [TOKENS]),
    (layers.TokenPaddingBias, {"pad_id": 3}, [Ids((5,))]),
    (layers.TokenEmbedding, {"vocabulary_size": 11, "channels": 8}, [Ids((5,))]),
    (layers.TokenPooling, {"token": "eos", "eos_id": 3}, [TOKENS, Ids((5,))]),
    (layers.TokensToGrid, {}, [(7, 8), GRID]),
    (layers.WeightNormDense, {"units": 6}, [TOKENS]),
    (Dense, {"units": 6, "activation": "relu"}, [TOKENS]),
    (EinsumDense, {"equation": "btc,chd->bthd", "output_shape": (5, 2, 4), "bias_axes": "hd"}, [TOKENS]),
    (Projection, {"equation": "btc,chd->bthd", "output_shape": (5, 2, 4), "bias_axes": "hd"}, [TOKENS]),
    (box_head.BoxHead, {"activation": "quick_gelu"}, [(6, 8), GRID]),
    (box_head.PatchMlp, {"units": 2, "activation": "quick_gelu"}, [(6, 8)]),
    (box_head.MergeClassToken, {}, [(7, 8), (6, 8)]),
    (box_head.ConcatenateDetections, {}, [(6, 4), (6, 3)]),
    (class_queries.ClassQueries, {"num_classes": 4, "size": 8}, [(6, 8), (6, 1), (6, 1)]),
    (segmentation_head.UpscaleBlock, {"activation": "gelu_tanh", "norm_epsilon": 1e-5}, [GRID]),
    (segmentation_head.ResizeToImage, {}, [GRID, IMAGE]),
    (segmentation_head.QueryAttentionBias, {"num_prefix_tokens": 1}, [(4, 6, 3), GRID]),
    (segmentation_head.SemanticScores, {}, [(4, 6, 3), (3, 5), IMAGE]),
    (aligned_resize.AlignedResize, {}, [GRID, IMAGE]),
    (enlargement.Enlargement, {"factor": 4}, [GRID]),
    (layers.WholePatches, {"patch_size": (5, 8)}, [IMAGE]),
    (depth_head.Readout, {}, [(7, 8), GRID]),
    (depth_head.Readout, {"kind": "add"}, [(7, 8), GRID]),
    (depth_head.Readout, {"kind": "project", "activation": "quick_gelu"}, [(7, 8), GRID]),
    (depth_head.Readout, {"kind": "concatenate"}, [(7, 8), GRID]),
    (depth_head.Reassemble, {"size": 6, "channels": 6, "factor": 4}, [GRID]),
    (depth_head.Reassemble, {"size": 6, "channels": 6}, [GRID]),
    (depth_head.Reassemble, {"size": 6, "channels": 6, "factor": 0.5}, [GRID]),
    (depth_head.ResidualUnit, {"norm": "batch"}, [GRID]),
    (depth_head.FusionBlock, {"norm": "batch"}, [GRID, IMAGE, GRID]),
    (depth_head.FusionBlock, {"residual": False}, [GRID, IMAGE]),
    (depth_head.PixelValues, {"activation": "sigmoid", "scale": 3.0}, [GRID]),
    (depth_head.DepthBins, {"min_depth": 1.0, "max_depth": 3.0}, [GRID]),
    (preprocessing.PreprocessingLayer, {"preprocessing": {"image_size": (8, 6)}}, [Pixels(IMAGE)]),
]
# Their outputs, for a loss or the attention's scores, are float32 under every policy.
BIASES = (
    *(layers.PaddingBias, layers.TokenPaddingBias),
    *(
        segmentation_head.QueryAttentionBias,
        segmentation_head.ResizeToImage,
        segmentation_head.SemanticScores,
        depth_head.PixelValues,
        depth_head.DepthBins,
    ),
)
# Whose configurations have more arguments, Keras's own.
KERAS = (keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Conv2D)
FLOAT32 = (
    *(
        *BIASES,
        keras_vit.ImageGPT,
        keras_vit.MaskedPatchPredictor,
        keras_vit.MaskedAutoencoder,
    ),
    *(keras_vit.ImageTextModel, keras_vit.DINO, keras_vit.DepthEstimator),
    layers.WholePatches,  # whose pixels stay in float32
    *(box_head.BoxHead, box_head.PatchMlp, box_head.ConcatenateDetections, class_queries.ClassQueries),
)
# Their outputs have no axis of the batch; they have tests of their own.
WITHOUT_BATCH = {
    *(layers.RotaryPositions, layers.RelativePositionIndex, layers.RelativePositionBias),
    *(keras_vit.models.DistributedModel, preprocessed.PreprocessedModel),  # of any layers
}
VIT = keras_vit.VisionTransformer
MODELS = [
    (VIT, SMALL, [IMAGE]),
    (VIT, {**SMALL, "pooling": "map", "representation_size": 9, "num_registers": 2}, [IMAGE]),
    (VIT, {**SMALL, "distillation": True, "layer_scale": 0.1, "dropout_rate": 0.1}, [IMAGE]),
    (
        VIT,
        {**SMALL, "pooling": "gap", "norm_after_pooling": True, "pre_norm": True, "class_names": [*"abcde"]},
        [IMAGE],
    ),
    (VIT, {**SMALL, "image_size": (None, None), "position_grid": (3, 3), "norm_epsilon": 1e-5}, [IMAGE]),
    (VIT, {**SMALL, **HYBRID, "resnet": (1,), "image_size": 16}, [IMAGE]),
    (VIT, {**SMALL, **NO_TRANSFORMER}, [IMAGE]),
    (
        VIT,
        {**SMALL, "rotary": "dinov3", "num_registers": 1, "gated_mlp": True, "activation": "silu"},
        [IMAGE],
    ),
    (VIT, {**SMALL, "rotary": "mixed", "norm": "rms", "qk_norm": True, "linear_bias": False}, [IMAGE]),
    (VIT, {**SMALL, "relative_positions": True, "key_bias": False, "image_size": (16, 19)}, [(16, 19, 3)]),
]
PATCHES = {"patches": (5, 8 * 8 * 3), "grids": Grids((2,))}
ENCODER = {**SMALL, "num_classes": None}
MASKED = {"images": IMAGE, "sources": Sources((4,))}
MODELS += [
    (keras_vit.MaskedPatchPredictor, {"encoder": ENCODER}, [MASKED]),
    (keras_vit.MaskedPatchPredictor, {"encoder": ENCODER, "target": "downsized"}, [MASKED]),
]
ORDERED = {"images": IMAGE, "order": Sources((4,))}
MODELS.append((keras_vit.MaskedAutoencoder, {"encoder": ENCODER, **DECODER}, [ORDERED]))
RECTANGLE = {**ENCODER, **PIXELS, "image_size": (4, 5)}
MODELS += [
    (keras_vit.PixelTransformer, {**RECTANGLE, "num_classes": 5, "norm_epsilon": 1e-5}, [(4, 5, 3)]),
    (keras_vit.ImageGPT, {"encoder": RECTANGLE}, [(4, 5, 3)]),
]
VIEWS = {"global_views": (2, *IMAGE), "local_views": (3, 8, 8, 3)}
MODELS.append((keras_vit.DINO, {"encoder": {**ENCODER, "num_layers": 1}, **HEAD, "num_local": 3}, [VIEWS]))
SEGMENTER = {"encoder": ENCODER, "num_classes": 5}
QUERIES = {**SEGMENTER, "head": "mask", "num_queries": 6, "query_blocks": 1}
MODELS += [
    (
        keras_vit.ImageSegmenter,
        {**SEGMENTER, "head": "up", "decoder_size": 8, "class_names": [*"abcde"]},
        [IMAGE],
    ),
    (keras_vit.ImageSegmenter, QUERIES, [IMAGE]),
]
DETECTOR = {"encoder": ENCODER, "num_classes": 5, "merge_class_token": True, "class_names": [*"abcde"]}
MODELS.append((keras_vit.ObjectDetector, DETECTOR, [IMAGE]))
DEPTH = {"encoder": ENCODER, "decoder_size": 8, "neck_sizes": [4, 5, 6, 7], "class_names": ["depth"]}
MODELS += [
    (keras_vit.DepthEstimator, {**DEPTH, "readout": "project", "quantity": "disparity"}, [IMAGE]),
    (keras_vit.DepthEstimator, {"encoder": ENCODER, "head": "linear", "bins": 8}, [IMAGE]),
]
POINTS = {"encoder": ENCODER, "num_classes": 3, "class_names": [*"abc"], "flip_index": (1, 0, 2)}
MODELS += [
    (keras_vit.KeypointEstimator, {**POINTS, "decoder_width": 8, "skeleton": ((0, 1),)}, [IMAGE]),
    (keras_vit.KeypointEstimator, {**POINTS, "head": "simple", "sigmas": (0.1, 0.2, 0.1)}, [IMAGE]),
]
TOWERS = {"image": ENCODER, "text": TEXT, "text_projection": 12, "projection_bias": True}
MODELS += [
    (keras_vit.TextTransformer, {**TEXT, "pooling": "argmax", "norm_epsilon": 1e-5}, [Ids((5,))]),
    (
        keras_vit.TextTransformer,
        {**TEXT, "causal": True, "pooling": "first", "norm_after_residual": True, "pad_id": 0},
        [Ids((5,))],
    ),
    (keras_vit.ImageTextModel, TOWERS, [{"images": IMAGE, "ids": Ids((5,))}]),
    (keras_vit.PackedVisionTransformer, {**SMALL, **PACKED, "norm_epsilon": 1e-5}, [PATCHES]),
]
CASES = LAYERS + MODELS
IDS = [f"{cls.__name__}-{i}" for i, (cls, _, _) in enumerate(CASES)]
# In a graph of its own, TensorFlow's convolution returns an empty batch with the size of its input, and the
# optimizer removes the reshape that would correct it. Runs give a device no empty batch.
EMPTY_IN_A_GRAPH = {
    *(layers.StdConv2D, convolution.Conv2D, depth_head.Reassemble, keras_vit.DepthEstimator),
    keras_vit.KeypointEstimator,
}
ON_JAX = keras.backend.backend() == "jax"  # which compiles every case
# tests/tasks/segmentation/test_model.py has fast tests of the queries.
PARAMETERS = [
    pytest.param(*case, id=name, marks=[pytest.mark.slow] * (case[1] is QUERIES))
    for case, name in zip(CASES, IDS)
]
every_case = pytest.mark.parametrize("cls, arguments, shapes", some(PARAMETERS, 16 if ON_JAX else 3))


def public(module):
    """The module's public names: those that its __init__ imports under the same name."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "").startswith("keras_vit")
    }


def each(make, shapes):
    """`make` of each shape and its dtype."""

    def convert(shape):
        if isinstance(shape, dict):
            return {name: convert(part) for name, part in shape.items()}
        return make(shape, getattr(shape, "dtype", "float32"))

    return [convert(shape) for shape in shapes]


def made(cls, arguments, **more):
    """A layer or model; the functions among the arguments make its parts."""
    dtype = more.get("dtype")
    parts = {key: value(dtype=dtype) for key, value in arguments.items() if callable(value)}
    return cls(**{**arguments, **parts}, **more)


def inputs_for(shapes, batch=2):
    rng = np.random.default_rng(0)

    def numbers(shape, dtype):
        make = rng.uniform if dtype == "float32" else rng.integers
        return make(*BOUNDS[dtype], (batch, *shape)).astype(dtype)

    return each(numbers, shapes)


_READY = {}  # by class and arguments


def ready(cls, arguments, shapes, **more):
    """The layer or model with random weights, which no test changes, and inputs for it."""
    inputs, case = inputs_for(shapes), repr((cls, arguments, shapes, more))
    if case not in _READY:
        with without_initial_values():
            layer = made(cls, arguments, **more)
            layer(*inputs)
        _READY[case] = randomize(layer)
    return _READY[case], inputs


def symbolic(layer, shapes):
    """A functional model of it."""
    inputs = each(lambda shape, dtype: keras.Input(shape, dtype=dtype), shapes)
    return keras.Model(inputs, layer(*inputs))


def test_every_public_layer_and_model_is_in_the_table():
    registered = keras.saving.get_custom_objects().values()
    classes = {t for t in registered if inspect.isclass(t) and issubclass(t, keras.layers.Layer)}
    # Another test of this process may have imported the layer of a SavedModel, in `export`.
    ours = {cls for cls in classes if re.match(r"keras_vit\.(?!export\.)", cls.__module__)}
    tested = {cls for cls, _, _ in CASES}
    assert ours - WITHOUT_BATCH == tested


@every_case
def test_the_configuration_has_every_argument_and_restores_the_layer(cls, arguments, shapes):
    with without_initial_values():
        layer = made(cls, arguments, name="renamed", dtype=keras.DTypePolicy("mixed_bfloat16"))
        config = json.loads(json.dumps(layer.get_config()))
        again = cls.from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    assert again.name == "renamed"
    assert again.dtype_policy.name == "mixed_bfloat16"
    parameters = inspect.signature(cls.__init__).parameters
    for parameter in parameters.values():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name not in ("self", "dtype"):
            # Keras's layers keep some under names of their own.
            assert hasattr(layer, parameter.name) or issubclass(cls, KERAS), parameter.name
    accepted = {*parameters, "name", "trainable", "dtype"}
    if not issubclass(cls, KERAS):
        assert {*config} <= accepted
    assert {*arguments} <= {*config}
    numbers = {name: value for name, value in arguments.items() if isinstance(value, float)}
    assert {name: config[name] for name in numbers} == numbers


@pytest.mark.parametrize("cls, arguments, shapes", some(PARAMETERS, 16 if ON_JAX else 9))
def test_eager_compiled_and_symbolic_calls_agree(cls, arguments, shapes):
    layer, inputs = ready(cls, arguments, shapes)
    eager = numpy(layer(*inputs))
    model = symbolic(layer, shapes)
    assert model.output.shape == (None, *eager.shape[1:])
    assert_close(model(inputs), eager, 1e-5)
    assert_close(compiled(layer)(*inputs), eager, 1e-5)


def compiled(layer):
    if keras.backend.backend() == "jax":
        import jax

        state = [[v.value for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables)]
        return jax.jit(lambda *x: layer.stateless_call(*state, *x)[0])
    import tensorflow as tf

    return tf.function(layer, autograph=False)


@pytest.mark.parametrize("cls, arguments, shapes", some(PARAMETERS, 21 if ON_JAX else 4))
def test_an_empty_batch_has_an_empty_output(cls, arguments, shapes):
    layer, inputs = ready(cls, arguments, shapes)
    expected = layer(*inputs).shape
    assert tuple(layer(*inputs_for(shapes, batch=0)).shape) == (0, *expected[1:])


@pytest.mark.tensorflow_only("JAX knows every size when it compiles")
@pytest.mark.parametrize("cls, arguments, shapes", some(PARAMETERS, 9))
def test_the_batch_may_be_unknown_in_the_graph(cls, arguments, shapes):
    import tensorflow as tf

    layer, inputs = ready(cls, arguments, shapes)
    call = tf.function(
        layer,
        input_signature=each(lambda shape, dtype: tf.TensorSpec((None, *shape), dtype), shapes),
        autograph=False,
    )
    assert call.get_concrete_function().output_shapes[0] is None
    for batch in (1, 3) if cls in EMPTY_IN_A_GRAPH else (0, 1, 3):
        xs = inputs_for(shapes, batch)
        assert_close(call(*xs), numpy(layer(*xs)), 1e-5)


HALVES = [  # in an order in which every other one has each case with one dtype, and both dtypes
    pytest.param(*case, dtype, id=f"{name}-{dtype}")
    for index, (case, name) in enumerate(zip(CASES, IDS))
    for dtype in (("float16", "bfloat16") if index % 2 else ("bfloat16", "float16"))
]


@pytest.mark.parametrize("cls, arguments, shapes, compute", some(HALVES, 50 if ON_JAX else 11))
def test_mixed_precision_computes_in_16_bits_and_stays_finite(cls, arguments, shapes, compute):
    layer, inputs = ready(cls, arguments, shapes, dtype=f"mixed_{compute}")
    output = layer(*inputs)
    assert {w.dtype for w in float_weights(layer)} <= {"float32"}
    is_float32 = arguments.get("num_classes") or cls in FLOAT32
    final = "float32" if is_float32 else compute
    assert keras.backend.standardize_dtype(output.dtype) == final
    output = numpy(keras.ops.cast(output, "float32"))
    assert np.isfinite(output).all()
    exact, _ = ready(cls, arguments, shapes)
    assert_close(output, numpy(exact(*inputs)), 0.15)


@pytest.mark.parametrize("cls, arguments, shapes", some(PARAMETERS, 21 if ON_JAX else 9))
def test_a_saved_file_loads_in_safe_mode_and_computes_the_same(cls, arguments, shapes, tmp_path):
    layer, inputs = ready(cls, arguments, shapes)
    is_model = isinstance(layer, keras.Model)
    model = layer if is_model else symbolic(layer, shapes)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(loaded) is type(model)
    if is_model:
        assert loaded.get_config() == model.get_config()
    assert_close(loaded(*inputs if is_model else [inputs]), numpy(layer(*inputs)), 1e-6)


@pytest.mark.parametrize("cls, arguments, shapes", some(PARAMETERS, 16 if ON_JAX else 4))
def test_gradients_reach_every_trainable_weight(cls, arguments, shapes):
    layer, inputs = ready(cls, arguments, shapes)
    factors = np.random.default_rng(1).standard_normal(layer(*inputs).shape).astype("float32")
    # A key's bias adds the same value to all scores of a query, which has no effect on the softmax.
    unused = {w.path for w in layer.trainable_weights if w.path.endswith("key/bias")}
    for weight, gradient in zip(layer.trainable_weights, gradients(layer, inputs, factors)):
        assert gradient is not None, weight.path
        gradient = numpy(gradient)
        assert np.isfinite(gradient).all(), weight.path
        assert weight.path in unused or np.abs(gradient).max() > 0, weight.path


def gradients(layer, inputs, factors):
    if keras.backend.backend() == "jax":
        import jax

        inputs = jax.tree.map(jax.numpy.asarray, inputs)

        def loss(trainable):
            fixed = [v.value for v in layer.non_trainable_variables]
            return (layer.stateless_call(trainable, fixed, *inputs)[0] * factors).sum()

        return jax.jit(jax.grad(loss))([v.value for v in layer.trainable_variables])
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(*inputs) * factors)
    return tape.gradient(loss, [v.value for v in layer.trainable_variables])


@every_case
def test_layers_with_weights_say_how_devices_divide_them(cls, arguments, shapes):
    """Their class says it, or the layer or model that creates them, as for any dense layer."""
    layer, _ = ready(cls, arguments, shapes)
    parts = [part for part in layer._flatten_layers() if part._trainable_variables]
    silent = {part.path for part in parts if not isinstance(getattr(part, "sharding", None), Sharding)}
    assert silent == ({layer.path} if cls in (Dense, EinsumDense, Projection) else set())
    for part in parts:
        for variable in part._trainable_variables if part.path not in silent else ():
            assert -part.sharding.axes.get(variable.name, -1) <= max(len(variable.shape), 1), variable.path


# Docstrings --------------------------------------------------------------------------------------

DOCUMENTED = {
    f"{module.__name__}.{name}": thing
    for module in (layers, keras_vit, preprocessing, variants)
    for name, thing in public(module).items()
    if callable(thing)
}


@by_table("name", [*DOCUMENTED])
def test_public_docstrings_describe_the_arguments_and_have_an_example(name):
    thing = DOCUMENTED[name]
    text = inspect.getdoc(thing) or ""
    assert text.split("\n")[0].rstrip().endswith((".", "?", ":")), "a sentence"
    own = not inspect.isclass(thing) or "__init__" in vars(thing)
    parameters = [
        p
        for p in inspect.signature(thing).parameters.values()
        if own and p.name not in ("kwargs", "name", "dtype")
    ]
    short = not inspect.isclass(thing) and "Args:" not in text and len(text.split("\n")) <= 8
    if parameters and not short:
        assert "Args:" in text
        described = text.split("Args:")[1].split("\n\n")[0]
        if "As `keras.layers" not in described:
            others = inspect.getdoc(thing.__base__) if "…: As for" in described else ""
            for parameter in parameters:
                assert parameter.name in text + others, parameter.name
    if inspect.isclass(thing) and issubclass(thing, keras.layers.Layer):
        for section in ("Example:", "Source:"):
            assert section in text, section
        assert "nput" in text or "Call arguments:" in text, "what it is called with"
        assert "utput" in text, "what comes out"
