import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from reference.small import small

from keras_vit.data.datasets import Samples, load_dataset
from keras_vit.export.description import describe
from keras_vit.export.verify import (
    BOUNDS,
    Reference,
    compare,
    draw_images,
    exact_products,
    judge,
    live_reference,
    milliseconds,
    row_of,
    size_of,
)

LIVE = np.array([[1.0, -2.0, 0.5], [4.0, 1.0, -1.0]], "float32")


def reference(task="single_label", labels=(0, 1), outputs=LIVE, is_classifier=True):
    images = np.zeros((len(outputs), 4, 4, 3), "float32")
    labels = None if labels is None else np.asarray(labels)
    return Reference(task, images, labels, outputs, is_classifier, lambda x: outputs[: len(x)])


def test_differences_are_shares_of_the_largest_live_logit():
    found = compare(reference(), LIVE + np.float32([[0.0, 0.0, 1.0], [0.0, -2.0, 0.0]]))
    assert found["max_logit_difference"] == pytest.approx(2 / 4)
    assert found["mean_logit_difference"] == pytest.approx(3 / 6 / 4)


@pytest.mark.parametrize(
    "task, labels, outputs, agreement, score",
    [
        ("single_label", [0, 1], LIVE, 1.0, 0.5),
        ("single_label", [0, 1], [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]], 0.5, 1.0),
        ("multi_label", [[1, 0, 1], [1, 1, 0]], LIVE, 1.0, 1.0),
        ("multi_label", [[1, 0, 1], [1, 1, 0]], [[-1.0, -1.0, 1.0], [1.0, 1.0, -1.0]], 5 / 6, 1.0),
        ("regression", LIVE, LIVE + 0.5, None, 0.5),
    ],
)
def test_each_task_is_judged_by_its_own_score(task, labels, outputs, agreement, score):
    outputs = np.asarray(outputs, "float32")
    found = row_of(reference(task, labels), lambda x: outputs[: len(x)])
    assert found["agreement"] == (agreement if agreement is None else pytest.approx(agreement))
    assert found["score"] == pytest.approx(score)


@pytest.mark.parametrize("options", [{"labels": None}, {"is_classifier": False}])
def test_without_labels_or_classes_nothing_is_judged(options):
    found = row_of(reference(**options), lambda x: LIVE[: len(x)])
    assert found["agreement"] is None and found["score"] is None
    assert found["max_logit_difference"] == 0


def row(**changes):
    return {"max_logit_difference": 0.0, "mean_logit_difference": 0.0, "agreement": 1.0, **changes}


@pytest.mark.parametrize("name", BOUNDS)
def test_an_export_is_held_to_its_bound(name):
    kind, bound = BOUNDS[name]
    worse, better = (1 + 1e-6, 1 - 1e-6) if kind == "max_logit_difference" else (1 - 1e-6, 1.0)
    assert judge(name, row(**{kind: bound * better}), 256) == (None, None)
    refused, warning = judge(name, row(**{kind: bound * worse}), 256)
    said = warning if name == "tflite_int8" else refused
    assert (f"the bound is {bound:.0e}" if kind == "max_logit_difference" else "the bound is 99%") in said
    assert (refused is None) == (name == "tflite_int8")
    for nothing in (np.nan, np.inf):
        assert "NaN" in judge(name, row(max_logit_difference=nothing), 256)[0]


@pytest.mark.parametrize("name", ["tflite_dynamic_int8", "tflite_int8"])
@pytest.mark.parametrize("agreement, images", [(None, 512), (0.5, 255), (1.0, 16)])
def test_where_an_agreement_says_nothing_that_is_said_and_the_outputs_are_bounded(name, agreement, images):
    refused, warning = judge(name, row(agreement=agreement), images)
    assert refused is None and "256 images" in warning
    refused, warning = judge(name, row(agreement=agreement, mean_logit_difference=0.11), images)
    assert "1.1e-01 of the largest on average" in (refused or warning)
    assert (refused is None) == (name == "tflite_int8")


def test_products_are_exact_while_formats_are_compared():
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    before = enabled()
    with exact_products():
        assert not enabled()
    assert enabled() == before


def test_the_bounds_are_the_promised_ones():
    assert {name: bound for name, (_, bound) in BOUNDS.items()} == {
        **dict.fromkeys(("saved_model", "hub", "onnx", "tflite_float32"), 1e-5),
        "tflite_float16": 5e-3,
        **dict.fromkeys(("tflite_dynamic_int8", "tflite_int8"), 0.99),
    }


def test_images_are_drawn_from_all_of_a_split():
    samples = load_dataset("digits").split("train")
    preprocessing = describe(small(image_size=16)).preprocessing
    images, labels = draw_images(samples, preprocessing, 50)
    assert images.shape == (50, 16, 16, 3) and images.min() >= 0 and 0.9 < images.max() <= 1
    assert len({image.tobytes() for image in images}) == 50
    assert len(set(labels.tolist())) == 10
    again, _ = draw_images(samples, preprocessing, 50)
    np.testing.assert_array_equal(images, again)
    few = samples.take(range(3))
    assert sorted(draw_images(few, preprocessing, 50)[1].tolist()) == sorted(few.labels)


def test_the_live_model_is_run_on_a_data_set_or_on_noise():
    model = small(num_classes=10)
    samples = load_dataset("digits").split("test").take(range(20))
    found = live_reference(model, describe(model), samples)
    expected = model.predict_on_batch(model.preprocessing(found.images))
    np.testing.assert_allclose(found.outputs, expected, rtol=1e-5, atol=1e-6)
    assert found.score(expected) == np.mean(expected.argmax(-1) == found.labels)

    noise = live_reference(model, describe(model))
    assert noise.labels is None and noise.images.shape == (16, 16, 16, 3)
    np.testing.assert_array_equal(noise.images, live_reference(model, describe(model)).images)


def test_labels_that_are_not_the_models_are_refused():
    model = small(num_classes=5)
    with pytest.raises(ValueError, match="labels up to 9, but the model has 5 classes"):
        live_reference(model, describe(model), load_dataset("digits").split("test"))
    samples = Samples(load_dataset("digits").split("test").images[:2], ((1.0, 0.0), (0.0, 1.0)))
    with pytest.raises(ValueError, match=r"\(2,\)"):
        live_reference(model, describe(model, "multi_label"), samples)


def test_a_row_tells_size_and_times(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b").write_bytes(b"345")
    assert size_of(tmp_path) == 5 and size_of(tmp_path / "a") == 2
    seen = []

    def run(images):
        seen.append(len(images))
        return LIVE[: len(images)] if len(images) < 16 else np.zeros((16, 3))

    found = row_of(dataclasses.replace(reference(), run=run), run, tmp_path)
    assert found["bytes"] == 5
    assert found["ms_batch_1"] > 0 and found["ms_batch_16"] > 0
    assert seen.count(1) >= 4 and seen.count(16) >= 4 and seen[0] == 2


def test_times_are_medians_after_a_call_that_does_not_count(monkeypatch):
    clock = iter([0.0, 1.0, 1.0, 1.1, 2.0, 2.3])
    monkeypatch.setattr("keras_vit.export.verify.time.perf_counter", lambda: next(clock))
    calls = []
    assert milliseconds(lambda: calls.append(0), seconds=0.5) == pytest.approx(300)
    assert len(calls) == 4
