import os

import numpy as np
import pytest
from made.pages import read_page
from reference.small import HYBRID, NO_TRANSFORMER, images_for, small

from keras_vit.cli.page import page
from keras_vit.cli.showing import VIEWS, Subject, look, view_sections
from keras_vit.inspection import attention_maps, attention_rollout
from keras_vit.preprocessing import Preprocessing

NO_BLOCKS = "0 blocks"
KINDS = {
    "class token": ({}, {}),
    "gap": ({"pooling": "gap", "class_token": True}, {}),
    "map": ({"pooling": "map"}, {}),
    "all tokens": ({"pooling": None, "num_registers": 2}, {}),
    "fixed positions": ({"position_embedding": "sincos2d"}, {}),
    "no positions": ({"position_embedding": "none"}, {"positions": "no position embeddings"}),
    "one pixel": ({"image_size": 4, "patch_size": 1}, {"filters": "one pixel"}),
    "bands": (
        {"in_channels": 5, "preprocessing": Preprocessing(16, mean=(0.5,) * 5, std=(0.5,) * 5)},
        {"filters": "5 channels"},
    ),
    "hybrid": ({**HYBRID, "resnet": (1,)}, {}),
    "no transformer": (
        {**HYBRID, "resnet": (1,), **NO_TRANSFORMER},
        {
            "rollout": NO_BLOCKS,
            "heads": NO_BLOCKS,
            "distances": NO_BLOCKS,
            "positions": "no position embeddings",
        },
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_looked_at_and_what_it_has_not_is_told(kind):
    options, reasons = KINDS[kind]
    model = small(**options)
    subject = Subject(model, [*images_for(model)], ["one", "two"])
    found, missing = look(subject)
    assert missing.keys() == reasons.keys() and {*found, *missing} == {*VIEWS}
    assert all(reasons[name] in missing[name] for name in missing)
    if "FULL" not in os.environ and kind not in ("map", "no transformer"):
        return
    sections, files = view_sections(subject, found, missing)
    assert [section.heading for section in sections] == [view.heading for view in VIEWS.values()]
    assert [*files] == [name for name in VIEWS if name in found]
    shown = read_page(page(kind, [], sections))
    assert len(shown.pictures()) == len(found) and shown.text.count("Not shown: ") == len(missing)


def test_without_images_what_needs_none_is_shown():
    found, missing = look(Subject(small(), [], []))
    assert [*found] == ["filters", "positions"]
    assert {*missing.values()} == {"there are no images to look at"}


def test_images_of_many_sizes_are_taken_in_their_order_in_groups_of_one_size():
    model = small(image_size=(None, None))
    sizes = [(16, 16)] * 6 + [(16, 24), (16, 16)]
    images = [image for size in sizes for image in images_for(model, 1, size)]
    subject = Subject(model, images, [str(i) for i in range(8)])
    groups = [*subject.groups()]
    assert [names for _, _, names in groups] == [[*"0123"], [*"45"], ["6"], ["7"]]
    for stacked, pixels, names in groups:
        assert pixels.shape == stacked.shape
        for image, name in zip(stacked, names):
            np.testing.assert_array_equal(image, images[int(name)])
    maps = [seen for group in look(subject, ["rollout"])[0]["rollout"] for seen in group]
    for image, seen in zip(images, maps, strict=True):
        np.testing.assert_allclose(seen, attention_rollout(model, image[np.newaxis])[0], rtol=1e-5)


@pytest.mark.parametrize("block", [None, 0, -1])
def test_the_heads_are_those_of_the_block_that_is_asked_for(block):
    model = small(pooling="map")
    images = images_for(model)
    found, _ = look(Subject(model, [*images], ["a", "b"], block), ["heads"])
    np.testing.assert_allclose(found["heads"], attention_maps(model, images[:1], block)[0], rtol=1e-5)


def test_an_image_that_does_not_fit_is_refused_by_its_name():
    model = small(image_size=(None, None), position_embedding="none")
    images = [images_for(model, 1, size)[0] for size in ((16, 24), (20, 16))]
    with pytest.raises(ValueError, match="^b.png: .*20×16"):
        Subject(model, images, ["a.png", "b.png"])


def test_figures_are_described_by_what_and_whom_they_show():
    model = small()
    subject = Subject(model, [*images_for(model, 5)], [*"abcde"])
    sections, _ = view_sections(subject, *look(subject))
    assert [picture.alt for section in sections for picture in section.figures] == [
        "Attention rollout: a, b, c, d",
        "Attention rollout: e",
        "Attention of each head: a",
        "Mean attention distance: a, b, c, d, e",
        "Principal components of the filters",
        "Cosine similarity of the position embeddings",
        "Patch similarity: a",
    ]
