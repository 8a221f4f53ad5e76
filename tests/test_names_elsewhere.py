import pathlib

import pytest
from made.tables import by_table

import keras_vit
from keras_vit import names_elsewhere

SMALL = {
    "image_size": 16,
    "patch_size": 8,
    "hidden_size": 8,
    "num_layers": 1,
    "mlp_dim": 8,
    "num_heads": 2,
    "num_classes": 2,
}


@pytest.fixture(scope="module")
def model():
    return keras_vit.VisionTransformer(**SMALL)


@by_table(
    "expression, message",
    [
        ("keras_vit.create_model('vit')", "has no attribute 'create_model'; use keras_vit.from_pretrained"),
        ("keras_vit.AutoModel", "has no attribute 'AutoModel'; use keras_vit.from_pretrained"),
        (
            "keras_vit.training.compile_modle",
            "has no attribute 'compile_modle' (did you mean 'compile_m",
        ),
        (
            "type(model).from_preset",
            "'VisionTransformer' has no attribute 'from_preset'; use keras_vit.fr",
        ),
        ("model.save_pretrained('mine')", "has no attribute 'save_pretrained'; use keras_vit.save_weights"),
        ("model.detect('photo.jpg')", "has no attribute 'detect'; use keras_vit.ObjectDetector.detect"),
        (
            "model.zero_shot('a.jpg', ['cat'])",
            "'zero_shot'; use keras_vit.from_pretrained(NAME, kind='image_text",
        ),
        ("model.no_such_name", "'VisionTransformer' object has no attribute 'no_such_name'"),
        (
            "keras_vit.VisionTransformer(embed_dim=8, depth=1)",
            "no option depth (did you mean 'num_layers'?)",
        ),
        ("keras_vit.VisionTransformer(pretrained=True)", "pretrained (keras_vit.from_pretrained(NAME) loads"),
        (
            "model(model.inputs[0], output_attentions=True)",
            "got output_attentions; use keras_vit.insp",
        ),
        (
            "model.classify('photo.jpg', top_k=3)",
            "classify() has no argument top_k (did you mean 'top'?)",
        ),
        ("keras_vit.save_weights(model, 'm.h5')", "is missing a required argument: 'layout'; it has path,"),
        ("model('photo.jpg')", "expected an array, as from model.preprocessing(['photo.jpg'])"),
        ("model.predict(pathlib.Path('photo.jpg'))", "expected an array, as from model.preprocessing(["),
    ],
)
def test_names_of_other_packages_are_told_ours(expression, message, model):
    with pytest.raises((ValueError, AttributeError, TypeError)) as error:
        eval(expression, {"keras_vit": keras_vit, "model": model, "pathlib": pathlib})
    assert message in str(error.value) and len(str(error.value)) < 350


def test_what_is_suggested_exists(model):
    ours = {**names_elsewhere.FUNCTIONS, **names_elsewhere.METHODS, **names_elsewhere.CALLS}
    for path in ours:
        root, *names = path.partition("(")[0].partition(" ")[0].split(".")
        place = {"keras_vit": keras_vit, "model": model}.get(root)
        for name in names if place is not None else ():
            place = getattr(place, name)


def test_an_attribute_of_a_package_is_no_name_of_another():
    assert not {*names_elsewhere.FUNCTION} & {*dir(keras_vit), *dir(keras_vit.layers)}
    assert not {*names_elsewhere.CALL} & {"training", "mask"}
