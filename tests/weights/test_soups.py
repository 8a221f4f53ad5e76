import os

import numpy as np
import pytest
from made.limited import peak_of
from made.sampling import some
from reference.comparing import arrays, assert_same_arrays, randomize
from reference.small import DECODER, SMALL, one_block, small

from keras_vit import ImageSegmenter, MaskedAutoencoder
from keras_vit.weights import average_models, greedy_soup
from keras_vit.weights.soups import ModelFiles, check_weights

ENCODER = {**SMALL, "num_classes": None, "num_layers": 1}
OPTIONS = {"class_names": (*"abcde",), "task": "multi_label"}
BIASES = (0.0, 1.0, 2.5, 4.0)  # of the head of each model
SCALES = (1e20, 1.0, -1e20, 4.0)  # The rounding of their sum depends on the order.


@pytest.fixture(scope="module")
def ingredients(tmp_path_factory):
    """(paths of files, their models)."""
    folder, models = tmp_path_factory.mktemp("ingredients"), []
    for number, (bias, scale) in enumerate(zip(BIASES, SCALES)):
        model = randomize(one_block(**OPTIONS), seed=number)
        model.get_layer("head").bias.assign(np.full(5, bias))
        model.get_layer("encoder_norm").gamma.assign(np.full(12, scale))
        model.save(folder / f"{number}.keras")
        models.append(model)
    return [folder / f"{number}.keras" for number in range(4)], models


@pytest.fixture(scope="module")
def files(ingredients):
    return ModelFiles(ingredients[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights", [pytest.param(x) for x in ((1, 1), (0.5, 0.25), (1e308, 1e308), (1e-320, 1e-320))]
)
def test_each_weight_is_the_mean_in_float64(weights, ingredients):
    paths, models = ingredients
    soup, ratio = average_models(paths[2:], None if weights == (1, 1) else weights), weights[0] / weights[1]
    first, second = (
        {name: array.astype("float64") for name, array in arrays(model).items()} for model in models[2:]
    )
    expected = {
        name: ((ratio * first[name] + second[name]) / (ratio + 1)).astype("float32") for name in first
    }
    assert_same_arrays(arrays(soup), expected)
    assert soup.class_names == OPTIONS["class_names"] and soup.task == OPTIONS["task"]


@pytest.mark.slow
def test_the_mean_does_not_depend_on_the_order(ingredients, files):
    backwards, weights = ModelFiles(ingredients[0][::-1]), [1.0, 0.5, 1.0, 0.25]
    for of, reversed_weights in ((None, None), (weights, weights[::-1])):
        mean = arrays(files.average(range(4), of))
        assert_same_arrays(arrays(backwards.average(range(4), reversed_weights)), mean)
        assert_same_arrays(
            arrays(files.average([3, 1, 0, 2], of and [weights[i] for i in (3, 1, 0, 2)])), mean
        )


def greedy(scores, score_of):
    """The indices in the greedy soup, as in the paper's recipe 1."""
    kept = []
    for index in np.argsort(-np.array(scores)):
        if not kept or score_of([*kept, index]) >= score_of(kept):
            kept.append(index)
    return sorted(kept)


@pytest.mark.parametrize(
    "target, higher_is_better", some([(2.0, True), (2.0, False), (0.9, True), (4.0, True)], 4)
)
def test_a_greedy_soup_keeps_what_does_not_lower_the_score(target, higher_is_better, files):
    sign = 1 if higher_is_better else -1

    def score_of(mean):
        return -sign * abs(float(mean) - target)

    def better(indices):
        return sign * score_of(np.mean([BIASES[index] for index in indices]))

    def score(model):
        return score_of(model.get_layer("head").bias.numpy()[0])

    soup, decisions = greedy_soup(files, score, higher_is_better=higher_is_better)
    kept = sorted(row["index"] for row in decisions if row["kept"])
    assert kept == greedy([better([index]) for index in range(4)], better)
    assert [row["score"] for row in decisions] == sorted(map(score_of, BIASES), reverse=higher_is_better)
    assert decisions[0]["score_with_it"] is None and decisions[0]["kept"]
    assert score(soup) == score_of(np.mean([BIASES[index] for index in kept]))


def test_a_model_that_leaves_the_score_as_it_is_is_kept(files):
    _, decisions = greedy_soup(files, lambda model: 0.5)
    assert [row["kept"] for row in decisions] == [True] * 4


@pytest.mark.parametrize("score", [None, float("nan"), "high"])
def test_a_score_has_to_be_a_finite_number(score, files):
    with pytest.raises(ValueError, match=f"^expected a score that is a finite number; got {score} for '"):
        greedy_soup(files, lambda model: score)


def test_what_has_no_effect_on_inference_may_differ_and_is_not_in_the_soup(tmp_path):
    first = one_block(dropout_rate=0.5, dtype="mixed_bfloat16", name="first")
    second = one_block(stochastic_depth_rate=0.1, name="second")
    second.layers[1].trainable = False
    for name, model in (("a", first), ("b", second)):
        model.save(tmp_path / f"{name}.keras")
    soup = average_models([tmp_path / "a.keras", tmp_path / "b.keras"])
    assert (soup.dropout_rate, soup.stochastic_depth_rate) == (0, 0)
    assert soup.dtype_policy.name == "float32" and len(soup.trainable_weights) == len(soup.weights)


@pytest.mark.slow
def test_models_of_one_class_may_have_other_names(tmp_path):
    """Some paths of weights begin with the name of the model."""
    models = []
    for seed, name in enumerate(("first", "second")):
        config = {"encoder": ENCODER, **DECODER, "name": name}
        models.append(randomize(MaskedAutoencoder.from_config(config), seed=seed))
        models[-1].save(tmp_path / f"{name}.keras")
    soup = average_models([tmp_path / "first.keras", tmp_path / "second.keras"])
    for mean, *values in zip(*(model.weights for model in (soup, *models))):
        expected = np.mean([value.numpy().astype("float64") for value in values], 0).astype("float32")
        np.testing.assert_array_equal(mean.numpy(), expected)


@pytest.mark.parametrize("seeds, given, expected", some([((None, 3), None, 3), ((2, 3), 7, 7)], 2))
def test_the_soup_has_the_seed_of_the_split(seeds, given, expected, tmp_path):
    paths = [tmp_path / f"{number}.keras" for number in range(2)]
    for number, (path, seed) in enumerate(zip(paths, seeds)):
        randomize(ImageSegmenter(ENCODER, 3, split_seed=seed), seed=number).save(path)
    config = ModelFiles(paths, given).model.get_config()
    assert (config["split_seed"], config["encoder"]["split_seed"]) == (expected, expected)


def other(change=lambda model: None, **options):
    """A function to another model with these options, after a change."""

    def make():
        model = one_block(**{**OPTIONS, **options})
        change(model)
        return model

    return make


REFUSED = {
    "class": (
        lambda: ImageSegmenter(ENCODER, 5),
        "class is 'VisionTransformer' in '{a}' and 'ImageSegmenter' in '{b}'",
    ),
    "option": (other(patch_size=4), r"patch_size is \(8, 8\) in '{a}' and \(4, 4\) in '{b}'"),
    "task": (other(task="regression"), "task is 'multi_label' in '{a}' and 'regression' in '{b}'"),
    "pixels": (
        other(preprocessing={"mean": (0.4,) * 3}),
        r"preprocessing.mean is \(0.5, 0.5, 0.5\) in '{a}' and \(0.4, 0.4, 0.4\) in '{b}'",
    ),
    "entry": (other(class_names=[*"abxye"]), r"class_names\[2\] is 'c' in '{a}' and 'x' in '{b}'$"),
    "long": (other(class_names=["a" * 70, *"bcde"]), r"class_names\[0\] differs between '{a}' and '{b}'$"),
    "quantized": (other(lambda model: model.quantize("int8")), "'{b}' is quantized or has LoRA factors"),
    "LoRA": (other(lambda model: model.enable_lora(2)), "'{b}' is quantized or has LoRA factors"),
    "NaN": (
        other(lambda model: model.get_layer("head").bias.assign(np.array([0, 1, np.nan, 2, 3]))),
        "expected finite weights; '{b}' has NaN or infinity in head/bias",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("make, message", REFUSED.values(), ids=REFUSED)
def test_models_that_do_not_fit_are_refused_in_one_line(make, message, ingredients, tmp_path):
    a, b = ingredients[0][0], tmp_path / "b.keras"
    make().save(b)
    with pytest.raises(ValueError, match=message.format(a=a, b=b)) as caught:
        average_models([a, b])
    assert "\n" not in str(caught.value)


def test_models_of_other_splits_are_refused(tmp_path):
    for seed in (0, 1):
        one_block(split_seed=seed).save(tmp_path / f"{seed}.keras")
    message = "got seed 0 of '.*0.keras' and seed 1 of '.*1.keras': give the seed"
    with pytest.raises(ValueError, match=message):
        average_models([tmp_path / "0.keras", tmp_path / "1.keras"])


@pytest.mark.parametrize(
    "names, options, message",
    [
        (["0.keras"], {}, "^expected two models or more; got 1$"),
        (
            ["0.keras", "1.keras", "0.keras"],
            {},
            "^expected different models; got the same file as '.*0.keras'",
        ),
        (["0.keras", "missing.keras"], {}, "^expected the folder of a finished run, or a .keras file; got '"),
        (["0.keras", ""], {}, "^expected the folder of a finished run, or a .keras file; got '"),
        (["0.keras", "1.keras"], {"split_seed": -1}, "^split_seed must be .*; got -1$"),
    ],
)
def test_wrong_arguments_are_refused(names, options, message, ingredients):
    folder = ingredients[0][0].parent
    with pytest.raises(ValueError, match=message):
        average_models([folder / name for name in names], **options)


@pytest.mark.parametrize(
    "weights, message",
    [
        ([1], "^expected a weight for each of the 2 models; got 1$"),
        ([1, 0], "^weights must be a number above 0; got 0$"),
        ([1, float("nan")], "^weights must be a number above 0; got nan$"),
    ],
)
def test_wrong_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        check_weights(weights, 2)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_models(tmp_path):
    """TensorFlow's memory, which the models have, is not traced."""
    sizes = {"hidden_size": 512, "num_heads": 4, "mlp_dim": 2048, "num_layers": 4}
    model = small(**sizes)
    for number in range(4):
        model.get_layer("head").bias.assign(np.full(5, number))
        model.save(tmp_path / f"{number}.keras")
    paths = [tmp_path / f"{number}.keras" for number in range(4)]
    average_models(paths[:2])
    assert peak_of(lambda: average_models(paths)) < 0.75 * os.path.getsize(paths[0])
