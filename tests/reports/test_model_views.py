import numpy as np
import pytest
from made.pages import read_page
from reference.small import HYBRID, NO_TRANSFORMER, images_for, small

from keras_vit.inspection import attention_maps, attention_rollout
from keras_vit.preprocessing import Preprocessing
from keras_vit.reports.model_views import VIEWS, Subject, add_views
from keras_vit.reports.page import Report

FIVE_CHANNELS = Preprocessing(16, mean=(0.5,) * 5, std=(0.5,) * 5)
OF_BLOCKS = {"rollout": "0 blocks", "heads": "0 blocks", "distances": "0 blocks", "positions": "no position"}
slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("undrawn")


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
    assert len(shown.pictures()) == len(arrays) and shown.text.count("Not shown: ") == len(missing)
    descriptions = [picture["alt"] for picture in shown.pictures()]
    assert ("Attention rollout: one, two" in descriptions) is ("rollout" in arrays)


def test_without_images_only_views_of_weights_are_drawn():
    arrays, missing = add_views(Report(), Subject(small(), [], []))
    assert [*arrays] == ["filters", "positions"] and {*missing.values()} == {"there are no images"}


def test_filters_whose_colors_were_not_trained_are_not_drawn():
    _, missing = add_views(Report(), Subject(small(), [], [], trained_on_gray=True), ["filters"])
    assert "the images are gray" in missing["filters"]


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


@pytest.mark.parametrize("block", [None, 0])
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
