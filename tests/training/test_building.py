import types

import numpy as np
import pytest
from made.sampling import some
from reference.comparing import arrays
from reference.small import NEWER, SMALL, images_for, small

from keras_vit.data import load_dataset
from keras_vit.data.samples import Samples
from keras_vit.labels.box_rows import encode_boxes
from keras_vit.models import MaskedPatchPredictor
from keras_vit.models.backbones import backbone
from keras_vit.tasks import OBJECTIVES
from keras_vit.tasks.segmentation.samples import MaskSamples
from keras_vit.training import RECIPES, Recipe, building
from keras_vit.training.building import build_model, finished_model, subset, whole_model
from keras_vit.training.run import load_data
from keras_vit.training.run_config import RunConfig
from keras_vit.variants import parse_variant

pytestmark = pytest.mark.usefixtures("eager")

RECIPE = Recipe("sgd", 0.1, 4, 0, 4)
DATASET = types.SimpleNamespace(class_names=("cat", "dog", "owl"))
SIZES = {name: value for name, value in SMALL.items() if name not in ("num_classes", "image_size")}


def config(recipe=RECIPE, **options):
    return RunConfig("digits", **{"model": SIZES, "image_size": (16, 16), **options}, recipe=recipe)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A model with `pre_logits` and another head, and its file."""
    model = small(representation_size=8)
    path = tmp_path_factory.mktemp("weights") / "model.keras"
    model.save(path)
    return model, str(path)


def test_a_new_model_has_the_data_sets_classes_and_the_recipes_options():
    options = {"dropout_rate": 0.1, "stochastic_depth_rate": 0.2, "dtype": "mixed_bfloat16"}
    options |= {"patch_dropout_rate": 0.5}
    model = build_model(config(RECIPE.with_changes(**options, model={"pooling": "gap"})), DATASET)
    assert (model.num_classes, tuple(model.class_names)) == (3, ("cat", "dog", "owl"))
    assert (model.dropout_rate, model.stochastic_depth_rate, model.pooling) == (0.1, 0.2, "gap")
    assert model.patch_dropout_rate == 0.5
    assert model.compute_dtype == "bfloat16"
    assert {model.dtype for model in model.trainable_variables} == {"float32"}


@pytest.mark.parametrize("objective", some(["mae", "masked_patch"], 2))
def test_a_model_without_labels_learns_from_images_alone_whatever_its_file_says(objective):
    model = build_model(config(objective=objective), DATASET)
    assert backbone(model).pretraining == finished_model(model).pretraining == "self_supervised"


@pytest.mark.parametrize("before", some([None, "unknown", "supervised", "self_supervised", "image_text"], 3))
def test_a_fine_tuned_model_keeps_what_its_weights_learned_from(before, tmp_path):
    small(pretraining=before, num_layers=1, num_classes=None).save(tmp_path / "a.keras")
    model = build_model(config(weights=str(tmp_path / "a.keras"), model=None), DATASET)
    expected = "supervised" if before in (None, "unknown") else before
    assert finished_model(model).pretraining == expected
    assert build_model(config(), DATASET).pretraining == "supervised"


def test_the_image_size_is_the_runs_or_the_recipes_or_the_models(stored):
    sizes = ((32, 16), (48, 48), (32, 16)), (None, (48, 48), (48, 48)), (None, None, (224, 224))
    for of_run, of_recipe, expected in sizes:
        model = build_model(config(RECIPE.with_changes(image_size=of_recipe), image_size=of_run), DATASET)
        assert model.image_size == expected
    recipe = RECIPE.with_changes(model={"preprocessing": RECIPES["plain_s16"].model["preprocessing"]})
    for source in ({}, {"weights": stored[1], "model": None}):
        prepare = build_model(config(recipe, image_size=24, **source), DATASET).preprocessing
        assert (prepare.image_size, prepare.resize, prepare.crop_fraction) == ((24, 24), "crop", 0.875)


def test_new_heads_have_the_recipes_bias():
    sizes = {**SIZES, "distillation": True}
    model = build_model(config(RECIPE.with_changes(head_bias=-6.9), model=sizes), DATASET)
    for name in ("head", "head_distillation"):
        np.testing.assert_array_equal(model.get_layer(name).bias.numpy(), np.float32(-6.9))
        np.testing.assert_array_equal(model.get_layer(name).kernel.numpy(), 0)


@pytest.mark.parametrize("split_seed, expected", some([(None, 7), (0, 0)], 2))
def test_the_seed_of_the_split_is_the_runs_unless_it_has_its_own(split_seed, expected):
    of_run = config(RECIPE.with_changes(seed=7, split_seed=split_seed))
    assert build_model(of_run, DATASET).split_seed == expected
    found, split = load_data(of_run).split("test"), load_dataset("digits", expected).split("test")
    other = load_dataset("digits", 7 - expected).split("test")
    assert [*found.labels] == [*split.labels] != [*other.labels]


def test_weights_are_loaded_except_for_pre_logits_and_the_head(stored):
    model, path = stored
    recipe = RECIPE.with_changes(task="multi_label", seed=7)
    built = build_model(config(recipe, weights=path, model=None, image_size=None), DATASET)
    assert built.representation_size is None and built.num_classes == 3
    assert (built.task, built.split_seed) == ("multi_label", 7)
    found, expected = arrays(built), arrays(model)
    assert {*found} == {name for name in expected if not name.startswith("pre_logits")}
    for name in found:
        wanted = 0 if name.startswith("head/") else expected[name]
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def test_weights_of_other_sizes_than_the_given_arguments_are_refused(stored):
    with pytest.raises(ValueError, match=r"expected hidden_size 24 for .*; .*model.keras has 12"):
        build_model(config(weights=stored[1], model={"hidden_size": 24}), DATASET)
    with pytest.raises(ValueError, match=r"expected widths 24 for .*; .*model.keras has None"):
        build_model(config(weights=stored[1], model={"widths": 24}), DATASET)
    assert build_model(config(weights=stored[1], model={"patch_size": [8, 8]}), DATASET)  # of a JSON file


def test_weights_of_a_family_are_those_of_its_variant(tmp_path, monkeypatch):
    """Whatever their pooling, and with biases or without."""
    tiny = NEWER["EVA-02-B"]
    sizes = {
        n: {k: v for k, v in NEWER[n].items() if k in {**SIZES, **parse_variant(f"{n}/8")}} for n in NEWER
    }
    monkeypatch.setattr(building, "parse_variant", sizes.get)
    small(**tiny | {"pooling": "token", "norm_after_pooling": False}).save(tmp_path / "model.keras")
    weights = {"weights": str(tmp_path / "model.keras"), "image_size": None}
    assert build_model(config(**weights, model="EVA-02-B"), DATASET).pooling == "token"
    with pytest.raises(ValueError, match="expected .* for DINOv3-S; .*model.keras has"):
        build_model(config(**weights, model="DINOv3-S"), DATASET)
    new = build_model(config(model="EVA-02-B", objective="masked_patch"), DATASET)
    assert new.encoder.rotary["kind"] == "axial"


def test_without_labels_the_model_predicts_patches_and_has_no_head(stored):
    sizes = {**SIZES, "representation_size": 8}
    new = build_model(config(model=sizes, objective="masked_patch"), DATASET)
    loaded = build_model(config(weights=stored[1], model=None, objective="masked_patch"), DATASET)
    for model in (new, loaded):
        encoder = backbone(model)
        assert encoder is model.encoder and encoder.num_classes is None
        assert encoder.representation_size is None
    tokens = (arrays(of)["class_token/token"] for of in (encoder, stored[0]))
    np.testing.assert_array_equal(*tokens)


def test_a_pretrainer_gets_the_recipes_arguments_and_refuses_others():
    decoder = {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}
    model = build_model(config(RECIPE.with_changes(pretrainer=decoder), objective="mae"), DATASET)
    assert {name: getattr(model, name) for name in decoder} == decoder
    first = {"mae": "decoder_hidden_size, .*", "dino": "num_local, .*"}
    for objective in {*OBJECTIVES} - {"distill"}:
        recipe = RECIPE.with_changes(pretrainer={"depth": 3, "target": "pixels", "name": "x"})
        expected = first.get(objective, "no arguments")
        message = f"^expected {expected} in the recipe's pretrainer; got depth, target, name$"
        with pytest.raises(ValueError, match=message):
            build_model(config(recipe, objective=objective), DATASET)


@pytest.mark.parametrize(
    "make, finish", some([(lambda x: x, finished_model), (MaskedPatchPredictor, whole_model)], 2)
)
def test_the_finished_model_is_plain_and_computes_the_same(make, finish):
    names = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")
    rates = dict.fromkeys((*names, "patch_dropout_rate") if make is not MaskedPatchPredictor else names, 0.5)
    model = make(small(**rates, dtype="mixed_bfloat16", num_classes=None))
    backbone(model).get_layer("encoder_norm").trainable = False
    finished = finish(model)
    assert {getattr(backbone(finished), name) for name in rates} == {0}
    assert type(finished) is type(model) and finished.compute_dtype == "float32"
    assert len(finished.trainable_variables) == len(finished.weights)
    np.testing.assert_equal(arrays(finished), arrays(model))
    model, finished = backbone(model), backbone(finished)
    images = images_for(model)
    np.testing.assert_array_equal(finished(images, training=True), finished(images))
    np.testing.assert_allclose(finished(images), np.asarray(model(images), "float32"), atol=0.3)


def samples(labels):
    labels = tuple(labels)
    return Samples(tuple(f"{i}.png" for i in range(len(labels))), labels)


def counts(taken):
    return {label: taken.labels.count(label) for label in set(taken.labels)}


def test_a_subset_of_masks_is_random():
    names = tuple(map(str, range(20)))
    found = subset(MaskSamples(names, names), 5, seed=1)
    assert len({*found.images}) == 5 and found.masks == found.images
    assert found.images != subset(MaskSamples(names, names), 5, seed=2).images


def test_a_subset_has_equal_numbers_from_each_class_as_far_as_possible():
    everything = samples([0] * 50 + [1] * 30 + [2] * 3)
    for count, each in ((9, [3, 3, 3]), (15, [3, 6, 6]), (10, [3, 3, 4])):
        assert sorted(counts(subset(everything, count, 0)).values()) == each
    taken = subset(everything, 20, 0)
    assert len(set(taken.images)) == 20
    for image, label in zip(taken.images, taken.labels):
        assert everything.labels[everything.images.index(image)] == label


def test_a_subset_of_labels_other_than_single_classes_has_their_frequencies():
    """A label of boxes, of several classes or of numbers that many images share is no class of its own."""
    rng = np.random.default_rng(0)
    drawn = [[[0, 0, x, 1, 0, 0, 1]] for x in rng.random(100)]
    for common, rare in (
        (encode_boxes([]), [encode_boxes(boxes) for boxes in drawn]),
        ((1.0, 0.0, 0.0), [(0.0, 1.0, 0.0), (0.0, 0.0, 1.0)] * 50),
        ((0.0,), [(x,) for x in rng.random(100).tolist()]),
    ):
        everything = samples([common, rare[i]][i % 2] for i in range(100))
        assert subset(everything, 100, 0) == everything
        assert 10 < counts(subset(everything, 40, 0))[common] < 30


def test_a_subset_depends_only_on_the_seed_and_contains_smaller_ones():
    everything = samples([0, 1] * 30)
    first, again, other = (subset(everything, 10, seed).images for seed in (0, 0, 1))
    assert first == again != other
    assert {*first} < {*subset(everything, 20, 0).images}
    with pytest.raises(ValueError, match="needs labels that are known before reading"):
        subset(types.SimpleNamespace(labels=None), 4, 0)
