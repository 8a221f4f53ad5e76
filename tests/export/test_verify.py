import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from made.tables import by_table
from reference.small import small

from keras_vit.data.datasets import load_dataset
from keras_vit.export.description import describe
from keras_vit.export.outputs.rows import RowOutputs
from keras_vit.export.tolerance import Tolerance
from keras_vit.export.verify import Reference, full_precision_matmul, live_reference, size_of
from keras_vit.tasks import get_task

LIVE = np.array([[1.0, -2.0, 0.5], [4.0, 1.0, -1.0]], "float32")
LARGEST, AGREEMENT = Tolerance("max_logit_difference", 1e-5), Tolerance("agreement", 0.99)


ROWS = RowOutputs(describe(small(num_layers=1)))


def reference(task="single_label", labels=(0, 1), num_classes=3):
    described = describe(small(num_classes=num_classes, num_layers=1), task)
    labels = None if labels is None else np.asarray(labels)
    return Reference(described, np.zeros((2, 4, 4, 3), "float32"), labels, LIVE, lambda x: LIVE[: len(x)])


def test_differences_are_relative_to_the_largest_live_logit():
    outputs = LIVE + np.float32([[0.0, 0.0, 1.0], [0.0, -2.0, 0.0]])
    found = reference().measure(lambda x: outputs[: len(x)])
    assert found["max_logit_difference"] == pytest.approx(2 / 4)
    assert found["mean_logit_difference"] == pytest.approx(3 / 6 / 4)


@by_table(
    "task, labels, outputs, agreement, score",
    [
        ("single_label", [0, 1], LIVE, 1.0, 0.5),
        ("single_label", [0, 1], [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]], 0.5, 1.0),
        ("multi_label", [[1, 0, 1], [1, 1, 0]], LIVE, 1.0, 1.0),
        ("multi_label", [[1, 0, 1], [1, 1, 0]], [[-1.0, -1.0, 1.0], [1.0, 1.0, -1.0]], 5 / 6, 1.0),
        ("regression", LIVE, LIVE + 0.5, None, 0.5),
    ],
)
def test_each_task_has_its_agreement_and_primary_metric(task, labels, outputs, agreement, score):
    outputs = np.asarray(outputs, "float32")
    found = reference(task, labels).measure(lambda x: outputs[: len(x)])
    assert found["agreement"] == (agreement if agreement is None else pytest.approx(agreement))
    assert found["score"] == pytest.approx(score)


@pytest.mark.parametrize("options", [{"labels": None}, {"num_classes": None}])
def test_without_labels_or_classes_only_differences_are_measured(options):
    found = reference(**options).measure(lambda x: LIVE[: len(x)])
    assert found["agreement"] is None and found["score"] is None
    assert found["max_logit_difference"] == 0


def row(**changes):
    row = {"max_logit_difference": 0.0, "mean_logit_difference": 0.0, "score": 0.9, "least_score": 0.8}
    return {**row, "decided": 256, "decided_agreement": 1.0, **changes}


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    "tolerance, within, beyond, said",
    [
        (LARGEST, {"max_logit_difference": 1e-5}, {"max_logit_difference": 1.1e-5}, "the bound is 1e-05"),
        (
            *(AGREEMENT, {"decided_agreement": 0.99}, {"decided_agreement": 0.9899}),
            "on 99.0% of 256 decided predictions; the bound is 99%",
        ),
        (AGREEMENT, {"score": 0.8}, {"score": 0.7999}, "its accuracy is 80.0%; the bound is 80.0%"),
        (AGREEMENT, {"cosine": 0.99}, {"cosine": 0.9899}, "a mean cosine of 0.990 .*; the bound is 0.99"),
        (AGREEMENT, {"mean_logit_difference": 0.1}, {"mean_logit_difference": 0.11}, "1.1e-01 .* on average"),
    ],
)
def test_an_export_beyond_its_tolerance_is_refused_or_warned_about(required, tolerance, within, beyond, said):
    tolerance = dataclasses.replace(tolerance, required=required)
    assert tolerance.check(row(**within), 256, ROWS) is None
    if required:
        with pytest.raises(ValueError, match=said):
            tolerance.check(row(**beyond), 256, ROWS)
    else:
        assert tolerance.check(row(**beyond), 256, ROWS)
    for nothing in (np.nan, np.inf):
        with pytest.raises(ValueError, match="NaN"):
            tolerance.check(row(max_logit_difference=nothing), 256, ROWS)


@by_table("agreement, decided", [(None, None), (None, 0), (0.5, 255), (1.0, 16)])
def test_an_agreement_on_few_images_or_on_noise_is_not_compared(agreement, decided):
    few = {"decided": decided, "decided_agreement": agreement}
    assert "256 or more decided predictions" in AGREEMENT.check(row(**few), 512, ROWS)
    with pytest.raises(ValueError, match="1.1e-01 of the largest on average"):
        AGREEMENT.check(row(**few, mean_logit_difference=0.11), 512, ROWS)


@by_table(
    "task, labels, margin, decided, agreement",
    [
        ("single_label", [0, 1], 0.4, 2, 0.5),
        ("single_label", [0, 1], 0.5, 1, 1.0),  # The first row's best logits differ by 0.5.
        ("single_label", [0, 1], 3.0, 0, None),
        ("multi_label", [[1, 0, 1], [1, 1, 0]], 0.5, 5, 0.8),
        ("multi_label", [[1, 0, 1], [1, 1, 0]], 0.0, 6, 4 / 6),
        ("regression", LIVE, 0.5, None, None),
        ("single_label", None, 0.5, None, None),
    ],
)
def test_what_the_live_model_decides_by_a_margin_is_compared_apart(task, labels, margin, decided, agreement):
    outputs = np.array([[1.0, -2.0, 1.5], [4.0, 1.0, 1.0]], "float32")
    if task == "multi_label":
        outputs[0, 2] *= -1
    found = dataclasses.replace(reference(task, labels), margin=margin).compare(outputs)
    assert found["decided"] == decided
    assert found["decided_agreement"] == (agreement if agreement is None else pytest.approx(agreement))


def test_the_bound_of_the_accuracy_is_the_lower_end_of_wilsons_interval():
    found = reference("single_label", [0, 1]).compare(LIVE)
    assert (found["score"], found["least_score"]) == (0.5, pytest.approx(0.0945, abs=1e-4))
    assert reference("multi_label", [[1, 0, 1], [1, 1, 0]]).compare(LIVE)["least_score"] is None
    assert reference(labels=None).compare(LIVE)["least_score"] is None


def test_features_have_a_mean_cosine():
    found = reference(labels=None, num_classes=None).compare(LIVE * np.float32([[2], [-1]]))
    assert found["cosine"] == pytest.approx(0, abs=1e-6)
    assert "cosine" not in reference().compare(LIVE)


def test_matmuls_are_of_full_precision_while_formats_are_compared():
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    with full_precision_matmul():
        assert not enabled()
    assert enabled()


def test_images_are_sampled_from_all_of_a_split():
    samples = load_dataset("digits").split("train")
    preprocessing = describe(small(image_size=16)).preprocessing
    images, labels = get_task("single_label").sampled(samples, preprocessing, 50)
    assert images.shape == (50, 16, 16, 3) and images.min() >= 0 and 0.9 < images.max() <= 1
    assert len({image.tobytes() for image in images}) == 50
    assert len(set(labels.tolist())) == 10
    np.testing.assert_array_equal(images, get_task("single_label").sampled(samples, preprocessing, 50)[0])
    few = samples.take(range(3))
    assert sorted(get_task("single_label").sampled(few, preprocessing, 50)[1].tolist()) == sorted(few.labels)


@pytest.mark.slow
def test_the_live_model_is_run_on_a_data_set_or_on_noise():
    model = small(num_classes=10)
    samples = load_dataset("digits").split("test").take(range(20))
    found = live_reference(model, describe(model), samples)
    expected = model.predict_on_batch(model.preprocessing(found.images))
    np.testing.assert_allclose(found.outputs, expected, rtol=1e-5, atol=1e-6)
    assert found.measure(found.run)["score"] == np.mean(expected.argmax(-1) == found.labels)

    noise = live_reference(model, describe(model))
    assert noise.labels is None and noise.images.shape == (16, 16, 16, 3)
    np.testing.assert_array_equal(noise.images, live_reference(model, describe(model)).images)


def test_labels_that_are_not_the_models_are_refused():
    model = small(num_classes=5)
    with pytest.raises(ValueError, match="labels up to 9, but the model has 5 classes"):
        live_reference(model, describe(model), load_dataset("digits").split("test").take(range(64)))


def test_a_row_has_the_size_and_the_times(tmp_path):
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b").write_bytes(b"345")
    assert size_of(tmp_path) == 5 and size_of(tmp_path / "a") == 2
    seen = []

    def run(images):
        seen.append(len(images))
        return np.zeros((len(images), 3))

    found = reference().measure(run, tmp_path)
    assert found["bytes"] == 5
    assert found["ms_batch_1"] > 0 and found["ms_batch_16"] > 0
    assert seen.count(1) >= 4 and seen.count(16) >= 4 and seen[0] == 2
