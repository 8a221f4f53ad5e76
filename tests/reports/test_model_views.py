from unittest import mock

import keras
import numpy as np
import pytest
from made.pages import read_page
from made.sampling import some
from made.tables import by_table
from reference.small import HYBRID, NO_TRANSFORMER, images_for, small

from keras_vit.inspection import attention_maps, attention_rollout, feature_pca, figures, foreground
from keras_vit.preprocessing import Preprocessing
from keras_vit.reports.model_views import VIEWS, Subject, add_views, whole_inputs
from keras_vit.reports.page import Report

FIVE_CHANNELS = Preprocessing(16, mean=(0.5,) * 5, std=(0.5,) * 5)
OF_BLOCKS = {"rollout": "0 blocks", "heads": "0 blocks", "distances": "0 blocks", "positions": "no position"}
slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, reasons",
    [
        ({"pooling": "map"}, {}),
        ({**HYBRID, "resnet": (1,), **NO_TRANSFORMER}, OF_BLOCKS),
        (
            {"image_size": 4, "patch_size": 1, "position_embedding": "none"},
            {"filters": "pixel", "positions": "no"},
        ),
        pytest.param({"in_channels": 5, "preprocessing": FIVE_CHANNELS}, {"filters": "got 5"}, marks=slow),
        pytest.param({**HYBRID, "resnet": (1,)}, {}, marks=slow),
    ],
)
def test_every_kind_of_model_is_drawn_and_what_it_lacks_is_stated(options, reasons):
    model = small(**options)
    report = Report()
    arrays, missing = add_views(report, Subject(model, [*images_for(model)], ["one", "two"]))
    assert missing.keys() == reasons.keys() and all(reasons[name] in missing[name] for name in missing)
    assert [*report.sections] == [heading for heading, _, _ in VIEWS.values()]
    assert [*arrays] == [name for name in VIEWS if name not in missing]
    assert [*report.figures] == [f"{name}.png" for name in arrays]
    shown = read_page(report.page("t"))
    explorers = "similarity" in arrays
    assert len(shown.pictures()) == len(arrays) + explorers and shown.text.count("Not shown: ") == len(
        missing
    )
    descriptions = [picture["alt"] for picture in shown.pictures()]
    assert ("Attention rollout: one, two" in descriptions) is ("rollout" in arrays)


def test_the_first_view_is_of_feature_components_of_the_output_tokens():
    model = small()
    images = images_for(model)
    arrays, _ = add_views(Report(), Subject(model, [*images], ["a", "b"]), ["components"])
    tokens = model.feature_extractor(["tokens"], grid=True).predict_on_batch(images)["tokens"]
    for grid, (of_all, mask, inside) in zip(tokens, arrays["components"], strict=True):
        np.testing.assert_allclose(of_all, feature_pca(grid), atol=1e-4)
        np.testing.assert_array_equal(mask, foreground(grid))
        np.testing.assert_allclose(inside, feature_pca(grid, masks=mask), atol=1e-4)
    assert [*VIEWS][:2] == ["components", "similarity"]


def test_tokens_of_one_channel_have_one_component():
    model = small(hidden_size=1, num_heads=1)
    subject = Subject(model, [*images_for(model)], ["a", "b"])
    arrays, missing = add_views(Report(), subject, ["components"])
    assert not missing and all(of_all[..., 1:].max() == 0 for of_all, _, _ in arrays["components"])


def test_artifacts_are_counted_with_their_attention():
    model = small()
    table = model.get_layer("position_embedding").table
    values = keras.ops.convert_to_numpy(table).copy()
    values[..., -1, :] += 100  # the last patch
    table.assign(values)
    report, images = Report(), images_for(model)
    arrays, _ = add_views(report, Subject(model, [*images], ["a", "b"]), ["heads", "rollout"])
    text = read_page(report.page("t")).text
    assert text.count("1 of 4 patches have a norm above 3 times the median") == 1 + len(images)
    share = arrays["heads"][:, -1, -1].mean()
    assert f"Their {share:.0%} of the attention is crossed out" in text
    report = Report()
    add_views(report, Subject(small(), [images[0]], ["a"]), ["heads"])
    assert (
        "a: no patch has a norm above 3 times the median; the largest is 1."
        in read_page(report.page("t")).text
    )


def test_images_without_artifacts_have_one_sentence():
    model, report = small(), Report()
    add_views(report, Subject(model, [*images_for(model)], ["a", "b"]), ["rollout"])
    text = read_page(report.page("t")).text
    assert text.count("norm above") == text.count("In 2 of 2 images no patch has a norm above 3 times") == 1


def test_patches_are_those_requested_and_others_are_refused_by_name():
    model = small(image_size=(16, 24))
    images = [*images_for(model)]
    with mock.patch.object(figures, "similarity_figure", wraps=figures.similarity_figure) as drawn:
        add_views(Report(), Subject(model, images, ["a", "b"], None, ((1, 2), (0, 0))), ["similarity"])
    assert drawn.call_args.args[2] == [(1, 2), (0, 0)]
    with pytest.raises(ValueError, match="expected patches in the 2 rows and 3 columns of a, from 0"):
        Subject(model, images, ["a", "b"], None, ((2, 0),))


@by_table(
    "options, size, words",
    [
        ({"resize": "squash"}, (16, 16), "resized to the model's 16 × 16 pixels, whatever"),
        ({"resize": "crop", "crop_fraction": 0.5}, (16, 16), "whatever their aspect ratio, and not cropped"),
        ({"resize": "pad"}, (16, 16), "padded to the aspect ratio of the model's 16 × 16 pixels"),
        ({"image_size": None}, (24, 40), "keep their aspect ratio"),
    ],
)
def test_inputs_show_the_whole_image(options, size, words):
    preprocessing = Preprocessing(**{"image_size": 16, "interpolation": "bilinear", **options})
    sizes = {"image_size": (None, None)} if preprocessing.image_size is None else {}
    model = small(**sizes, preprocessing=preprocessing)
    image = np.zeros((27, 44, 3), "uint8")
    image[:, :4] = image[:, -4:] = 255  # both ends, which a crop removes
    (found,), said = whole_inputs(model, [image])
    assert found.shape == (*size, 3) and words in said
    colors = preprocessing.colors(found)
    assert colors[0, 0].min() > 0.9 and colors[: size[0] // 2, -1].min() > 0.9
    assert colors[0, size[1] // 2].max() < 0.1


def test_a_large_image_for_a_model_of_any_size_has_few_patches():
    model = small(image_size=(None, None), preprocessing=Preprocessing(None))
    (found, tiny), _ = whole_inputs(model, [np.zeros((900, 1800, 3), "uint8"), np.zeros((3, 5, 3), "uint8")])
    rows, columns = found.shape[0] // 8, found.shape[1] // 8
    assert 900 < rows * columns <= 1024 and 1.9 < columns / rows < 2.1
    assert tiny.shape == (8, 8, 3)


def test_without_images_only_views_of_weights_are_drawn():
    arrays, missing = add_views(Report(), Subject(small(), [], []))
    assert [*arrays] == ["filters", "positions"] and {*missing.values()} == {"there are no images"}


def test_filters_whose_colors_were_not_trained_are_not_drawn():
    _, missing = add_views(Report(), Subject(small(), [], [], trained_on_gray=True), ["filters"])
    assert "the images are gray" in missing["filters"]


@pytest.mark.slow
def test_images_are_grouped_by_size_in_their_order():
    model = small(image_size=(None, None))
    sizes = [(16, 16)] * 6 + [(16, 24), (16, 16)]
    images = [image for size in sizes for image in images_for(model, 1, size)]
    subject = Subject(model, images, [str(i) for i in range(8)])
    groups = [*subject.groups()]
    assert [names for _, _, names in groups] == [[*"0123"], [*"45"], ["6"], ["7"]]
    for stacked, pixels, names in groups:
        np.testing.assert_array_equal(stacked, [images[int(name)] for name in names])
        assert pixels.shape == stacked.shape
    report = Report()
    arrays, _ = add_views(report, subject, ["rollout"])
    maps = [found for group in arrays["rollout"] for found in group]
    for image, found in zip(images, maps, strict=True):
        np.testing.assert_allclose(found, attention_rollout(model, image[np.newaxis])[0], rtol=1e-5)
    assert [*report.figures] == ["rollout.png", *(f"rollout-{i}.png" for i in (2, 3, 4))]


@pytest.mark.parametrize("block", some([None, 0], 2))
def test_the_heads_are_those_of_the_requested_block(block):
    model = small(pooling="map")
    images = images_for(model)
    arrays, _ = add_views(Report(), Subject(model, [*images], ["a", "b"], block), ["heads"])
    np.testing.assert_allclose(arrays["heads"], attention_maps(model, images[:1], block)[0], rtol=1e-5)


def test_an_image_that_does_not_fit_is_refused_by_its_name():
    model = small(image_size=(None, None), position_embedding="none")
    images = [images_for(model, 1, (16, 24))[0], np.zeros((16, 24, 1), "float32")]
    with pytest.raises(ValueError, match=r"^b.png: .*\(.*16, 24, 1\)"):
        Subject(model, images, ["a.png", "b.png"])
