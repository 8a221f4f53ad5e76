import numpy as np
import pytest
from made.pages import read_page
from reference.small import HYBRID, NO_TRANSFORMER, images_for, small

from keras_vit.cli.page import page
from keras_vit.cli.views import VIEWS, Subject, draw_views
from keras_vit.inspection import attention_maps, attention_rollout
from keras_vit.preprocessing import Preprocessing

NO_BLOCKS = "0 blocks"
FIVE_CHANNELS = Preprocessing(16, mean=(0.5,) * 5, std=(0.5,) * 5)
WITHOUT_TRANSFORMER = {
    "rollout": NO_BLOCKS,
    "heads": NO_BLOCKS,
    "distances": NO_BLOCKS,
    "positions": "no position",
}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    "options, reasons",
    [
        ({"pooling": "map"}, {}),
        ({**HYBRID, "resnet": (1,), **NO_TRANSFORMER}, WITHOUT_TRANSFORMER),
        (
            {"image_size": 4, "patch_size": 1, "position_embedding": "none"},
            {"filters": "pixel", "positions": "no"},
        ),
        pytest.param(
            {"in_channels": 5, "preprocessing": FIVE_CHANNELS}, {"filters": "5 channels"}, marks=slow
        ),
        pytest.param({"pooling": "gap", "class_token": True}, {}, marks=slow),
        pytest.param({"pooling": None, "num_registers": 2}, {}, marks=slow),
        pytest.param({"position_embedding": "sincos2d"}, {}, marks=slow),
        pytest.param({**HYBRID, "resnet": (1,)}, {}, marks=slow),
    ],
)
def test_every_kind_of_model_is_drawn_and_what_it_lacks_is_stated(options, reasons):
    model = small(**options)
    sections, files, arrays, missing = draw_views(Subject(model, [*images_for(model)], ["one", "two"]))
    assert missing.keys() == reasons.keys() and all(reasons[name] in missing[name] for name in missing)
    assert [*sections] == [heading for heading, _, _ in VIEWS.values()]
    assert [*files] == [*arrays] == [name for name in VIEWS if name not in missing]
    shown = read_page(page("t", [], sections))
    assert len(shown.pictures()) == len(files) and shown.text.count("Not shown: ") == len(missing)


def test_without_images_only_views_of_weights_are_drawn():
    _, files, _, missing = draw_views(Subject(small(), [], []))
    assert [*files] == ["filters", "positions"] and {*missing.values()} == {"there are no images"}


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
    _, files, arrays, _ = draw_views(subject, ["rollout"])
    maps = [found for group in arrays["rollout"] for found in group]
    for image, found in zip(images, maps, strict=True):
        np.testing.assert_allclose(found, attention_rollout(model, image[np.newaxis])[0], rtol=1e-5)
    assert [*files] == ["rollout", "rollout-2", "rollout-3", "rollout-4"]


@pytest.mark.parametrize("block", [None, 0, -1])
def test_the_heads_are_those_of_the_requested_block(block):
    model = small(pooling="map")
    images = images_for(model)
    *_, arrays, _ = draw_views(Subject(model, [*images], ["a", "b"], block), ["heads"])
    np.testing.assert_allclose(arrays["heads"], attention_maps(model, images[:1], block)[0], rtol=1e-5)


def test_an_image_that_does_not_fit_is_refused_by_its_name():
    model = small(image_size=(None, None), position_embedding="none")
    images = [images_for(model, 1, size)[0] for size in ((16, 24), (20, 16))]
    with pytest.raises(ValueError, match="^b.png: .*20×16"):
        Subject(model, images, ["a.png", "b.png"])


def test_figures_have_a_description_with_the_names_of_the_images():
    model = small()
    sections, *_ = draw_views(Subject(model, [*images_for(model, 5)], [*"abcde"]))
    assert [picture["alt"] for picture in read_page(page("t", [], sections)).pictures()] == [
        "Attention rollout: a, b, c, d",
        "Attention rollout: e",
        "Attention of each head: a",
        "Mean attention distance: a, b, c, d, e",
        "Principal components of the filters",
        "Cosine similarity of the position embeddings",
        "Patch similarity: a",
    ]
