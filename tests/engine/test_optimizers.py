import keras
import ml_dtypes
import numpy as np
import pytest
from made.sampling import some
from reference.small import NEWER, images_for, small

import keras_vit
from keras_vit.engine.muon import Muon
from keras_vit.engine.optimizers import make_optimizer
from keras_vit.training import SGD, AdamW, WarmupDecay, compile_model
from keras_vit.training.recipes import Recipe

RATE = WarmupDecay(0.2, total_steps=8, warmup_steps=2)
BFLOAT16 = ml_dtypes.bfloat16
LORA = ("attention/query", "mlp/dense_0")


def depth_factors(paths, blocks, decay):
    """BEiT's factors: 1 after the last block, `decay` to the power of the depth below it for the others."""
    factors, after = {}, False
    for path in paths:
        first = path.split("/")[0]
        after = after or first.startswith("encoder_block_")
        number = int(first.removeprefix("encoder_block_")) if first.startswith("encoder_block_") else None
        exponent = blocks - number if number is not None else (0 if after else blocks + 1)
        factors[path] = decay**exponent
    return factors


class Momentum:
    """optax's SGD; the buffer has the dtype `accumulator`, the step does not."""

    def __init__(self, accumulator):
        self.accumulator, self.buffer = accumulator, 0.0

    def update(self, gradient, step):
        new = gradient + 0.9 * self.buffer
        self.buffer = new.astype(self.accumulator).astype("float64")
        return new


class Adam:
    m = v = 0.0

    def update(self, gradient, step):
        self.m, self.v = 0.9 * self.m + 0.1 * gradient, 0.999 * self.v + 0.001 * gradient**2
        return self.m / (1 - 0.9 ** (step + 1)) / (np.sqrt(self.v / (1 - 0.999 ** (step + 1))) + 1e-8)


@pytest.mark.parametrize(
    "optimizer, reference, layer_decay, atol",
    some(
        [
            (SGD(RATE, 0.9, weight_decay=0.5, layer_decay=0.7, global_clipnorm=3.0), "float64", 0.7, 5e-6),
            (SGD(RATE, 0.9, "bfloat16", weight_decay=0.5, global_clipnorm=3.0), BFLOAT16, 1.0, 1e-3),
            (
                AdamW(RATE, weight_decay=0.5, layer_decay=0.6, global_clipnorm=3.0, epsilon=1e-8),
                Adam,
                0.6,
                1e-4,
            ),
        ],
        3,
    ),
    ids=["sgd", "sgd in bfloat16", "adamw"],
)
def test_steps_follow_the_formulas(optimizer, reference, layer_decay, atol, rng):
    model = small(pooling="map")
    variables = model.trainable_variables
    weights = {v.path: v.numpy().astype("float64") for v in variables}
    factors = depth_factors(weights, 2, layer_decay)
    updates = {path: Adam() if reference is Adam else Momentum(reference) for path in weights}
    for step in range(5):
        gradients = {v.path: rng.standard_normal(v.shape).astype("float32") for v in variables}
        optimizer.apply([keras.ops.convert_to_tensor(gradients[v.path]) for v in variables], variables)
        norm = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients.values()))
        for path, gradient in gradients.items():
            rate = float(RATE(step)) * factors[path]
            update = updates[path].update(gradient * min(1, 3.0 / norm), step)
            decay = rate * 0.5 * path.endswith("/kernel")
            weights[path] = weights[path] * (1 - decay) - rate * update
    # Rounding to bfloat16 may fall to either side of an edge, so its largest error is bounded loosely.
    for variable in variables:
        error = np.abs(variable.numpy() - weights[variable.path])
        assert np.median(error) < 1e-5, variable.path
        assert error.max() < atol, variable.path


@pytest.mark.parametrize(
    "kind, options",
    [
        (SGD, {"momentum": 0.8, "global_clipnorm": 2.0, "accumulator_dtype": "bfloat16"}),
        (AdamW, {"weight_decay": 0.2, "global_clipnorm": 2.0, "beta_1": 0.9, "beta_2": 0.999}),
        (Muon, {"weight_decay": 0.2, "global_clipnorm": 2.0, "beta_2": 0.9}),
    ],
)
def test_the_optimizer_of_a_recipe_has_its_hyperparameters_and_schedule(kind, options):
    recipe = Recipe(kind.__name__.lower(), 0.3, 50, 5, 1, decay="linear", clip_norm=2.0)
    fields = ("momentum", "accumulator_dtype", "weight_decay", "beta_2")
    recipe = recipe.with_changes(**{name: value for name, value in options.items() if name in fields})
    optimizer = make_optimizer(recipe)
    assert type(optimizer) is kind
    config = optimizer.get_config()
    assert {name: config[name] for name in options} == options
    schedule = {"base_lr": 0.3, "total_steps": 50, "warmup_steps": 5, "decay": "linear"}
    assert config["learning_rate"]["config"] == schedule


def rate_factors(model):
    """The factor of each trainable variable's rate by its path, with a layer decay of 0.5."""
    optimizer = AdamW(1.0, weight_decay=0.1, layer_decay=0.5)
    optimizer.build(model.trainable_variables)
    return dict(zip([v.path for v in model.trainable_variables], optimizer._rate_factors))


def test_layer_decay_counts_the_blocks_of_each_tower():
    sizes = {"hidden_size": 12, "mlp_dim": 20, "num_heads": 3}
    text = {**sizes, "vocabulary_size": 8, "length": 4, "num_layers": 1, "norm_after_residual": True}
    model = keras_vit.ImageTextModel(small(num_classes=None), text, image_projection=12)
    factors = rate_factors(model)
    image = [path for path in factors if not path.startswith(("text/", "image_projection/", "logit_"))]
    text = [path for path in factors if path.startswith("text/")]
    of_text = depth_factors([path.removeprefix("text/") for path in text], 1, 0.5)
    assert {path: factors[path] for path in image} == depth_factors(image, 2, 0.5)
    assert [factors[path] for path in text] == [*of_text.values()]
    assert {factors[path] for path in factors if path not in (*image, *text)} == {1.0}


def test_layer_decay_of_a_model_around_an_encoder():
    """A mask token before the blocks is an embedding, what comes between or after them is not."""
    encoder = small(num_classes=None)
    predictor = rate_factors(keras_vit.MaskedPatchPredictor(encoder))
    segmenter = rate_factors(keras_vit.ImageSegmenter(encoder, 5, head="mask", num_queries=2, query_blocks=1))
    assert predictor["mask_token/token"] == predictor["patch_embedding/kernel"] == 0.125
    assert segmenter["patch_embedding/kernel"] == 0.125
    of_blocks = {path.split("/")[0]: factor for path, factor in segmenter.items() if "encoder_b" in path}
    assert of_blocks == {"encoder_block_0": 0.25, "encoder_block_1": 0.5}
    tops = ("queries/token", "class_head/kernel", "encoder_norm/gamma")
    assert [segmenter[path] for path in tops] == [1.0] * 3


@pytest.mark.parametrize("quantized", [False, True])
def test_layer_decay_of_lora_factors_is_that_of_their_kernels(quantized):
    model = small()
    if quantized:
        model.quantize("int8")
    model.enable_lora(1, targets=("query", "dense_0"))
    restored = keras_vit.VisionTransformer.from_config(model.get_config())
    factors = rate_factors(model)
    assert factors == rate_factors(restored)
    parts = {path.rsplit("/", 1)[0]: factor for path, factor in factors.items()}
    assert parts == {
        **{f"encoder_block_{i}/{part}": 0.5 ** (2 - i) for i in (0, 1) for part in LORA},
        "head": 1.0,
    }


def test_layer_decay_reaches_every_weight_of_newer_families():
    """Tokens, tables and learned frequencies are below the first block; only kernels decay."""
    model = small(**{**NEWER["EVA-02-B"], "rotary": "mixed", "layer_scale": 0.1, "num_registers": 2})
    factors = rate_factors(model)
    assert "rotary_positions/frequencies" in factors
    assert factors == depth_factors(factors, 2, 0.5)
    optimizer = AdamW(1.0, weight_decay=0.1)
    optimizer.build(model.trainable_variables)
    paths = [variable.path for variable in model.trainable_variables]
    assert {path for path, decays in zip(paths, optimizer._decays) if decays} == {
        path for path in paths if path.rpartition("/")[2] == "kernel"
    }


def test_the_head_of_a_linear_probe_has_the_whole_rate():
    model = small()
    compile_model(model, "linear_probe", layer_decay=0.5, warmup_steps=0, base_lr=0.25, clip_norm=None)
    bias = model.get_layer("head").bias
    before = bias.numpy()
    ones = [keras.ops.ones(v.shape) for v in model.trainable_variables]
    model.optimizer.apply(ones, model.trainable_variables)
    np.testing.assert_allclose(before - bias.numpy(), 0.25, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_the_moving_average_is_stored_in_a_file(optimizer, tmp_path):
    model = small(num_layers=1)
    options = {"accumulator_dtype": "bfloat16"} if optimizer == "sgd" else {"weight_decay": 0.1}
    recipe = Recipe(optimizer, 0.1, 10, 0, 4, ema=0.75, layer_decay=0.5, **options)
    compile_model(model, recipe)
    model.run_eagerly = True
    images, labels = images_for(model, 4), np.arange(4)
    kernel, average = model.get_layer("head").kernel, None
    for step in range(3):
        model.train_on_batch(images, labels)
        # Keras starts it with the weights after the first step.
        average = kernel.numpy() if step == 0 else 0.75 * average + 0.25 * kernel.numpy()
    index = model.optimizer._get_variable_index(kernel)
    np.testing.assert_allclose(model.optimizer._model_variables_moving_average[index], average, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for one, other in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(other.numpy().astype("float64"), one.numpy().astype("float64"))
    again.run_eagerly = True
    for one in (model, again):
        one.train_on_batch(images, labels)
    np.testing.assert_array_equal(again.get_layer("head").kernel.numpy(), kernel.numpy())


@pytest.mark.parametrize(
    "kind, options, words",
    [
        (AdamW, {"layer_decay": 1.5}, r"layer_decay must be a number in \(0, 1\] or None; got 1.5"),
        (SGD, {"momentum": 1.0}, r"momentum must be a number in \[0, 1\); got 1.0"),
        (Muon, {"momentum": 1.0}, r"momentum must be a number in \[0, 1\); got 1.0"),
        (Muon, {"newton_schulz_steps": 0}, "newton_schulz_steps must be"),
        (Muon, {"iteration_dtype": "float16"}, "iteration_dtype must be one of 'bfloat16', 'float32'"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, words):
    with pytest.raises(ValueError, match=words):
        kind(**options)
