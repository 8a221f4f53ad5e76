import numpy as np
import pytest
from made.encoded import encoded
from made.sampling import some
from made.unread import Unread
from PIL import Image
from reference.comparing import numpy, randomize
from reference.small import SMALL, one_block, small

from keras_vit import ImageSegmenter, Preprocessing, VisionTransformer, evaluation
from keras_vit.data.samples import Samples
from keras_vit.evaluation import evaluate, predict, predict_maps
from keras_vit.tasks.segmentation.samples import MaskSamples

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture
def samples(dataset):
    return dataset.split("train")


class Fixed:
    """A model that returns the given logits, batch after batch."""

    def __init__(self, logits):
        self.logits = np.asarray(logits, "float32")
        self.num_classes = self.logits.shape[1]
        self.is_classifier = True
        self.preprocessing = small(num_layers=1).preprocessing
        self.done = 0

    def predict_on_batch(self, images):
        self.done += len(images)
        return self.logits[self.done - len(images) : self.done]


def by_definition(logits, labels):
    logits = np.asarray(logits, "float64")
    best = [np.argsort(-row, kind="stable")[:5] for row in logits]
    scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return {
        "samples": len(labels),
        "accuracy": np.mean(logits.argmax(1) == labels),
        "top5_accuracy": np.mean([label in five for label, five in zip(labels, best)]),
        "loss": -np.log(scores[np.arange(len(labels)), labels]).mean(),
    }


@pytest.mark.parametrize("unread", some([Unread, lambda samples: samples], 2))
def test_scores_equal_their_definitions_and_no_sample_is_dropped(unread, samples, rng):
    logits = 3 * rng.standard_normal((len(samples), 8))
    found = evaluate(Fixed(logits), unread(samples), 7)
    assert found == pytest.approx(by_definition(logits.astype("float32"), np.array(samples.labels)))
    assert 0 < found["accuracy"] < found["top5_accuracy"] < 1


def test_the_logits_are_the_models_for_the_samples(samples):
    model = small(num_layers=1, num_classes=7)
    logits = numpy(model(model.preprocessing(list(samples.images))))
    expected = by_definition(logits, np.array(samples.labels))
    assert evaluate(model, samples, 8) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("task", some(["multi_label", "regression"], 2))
def test_the_default_is_the_models_task(task, samples):
    labels = tuple((float(label), 0.0, 1.0) for label in range(len(samples)))
    if task == "multi_label":
        labels = tuple((1.0, 0.0, float(label % 2)) for label in range(len(samples)))
    labeled, model = Samples(samples.images, labels), one_block(num_classes=3, task=task)
    assert evaluate(model, labeled) == evaluate(model, labeled, task=task)
    refused = {"multi_label": "regression", "regression": "multi_label"}[task]
    with pytest.raises(ValueError, match=f"^expected the task '{task}' for a Vision.*; got '{refused}'"):
        evaluate(model, labeled, task=refused)


def test_of_equal_logits_the_first_is_predicted_as_by_argmax(samples):
    found = evaluate(Fixed(np.full((len(samples), 5), 1e5)), samples)
    assert found["accuracy"] == samples.labels.count(0) / len(samples)
    assert found["top5_accuracy"] is None  # There are only five classes.
    assert found["loss"] == pytest.approx(np.log(5))


def rows(samples, width):
    return Samples(samples.images, ((1.0,) * width,) * len(samples))


def hidden(samples):
    return Samples(samples.images, (-1,) * len(samples))


@pytest.mark.parametrize(
    "classes, change, task, words",
    some(
        [
            (2, lambda samples: samples, "single_label", "labels up to 2, but the model has 2 classes"),
            (2, Unread, "single_label", "labels up to 2, but the model has 2 classes"),
            (3, hidden, "single_label", "label -1: this split's labels are unknown"),
            (3, lambda samples: Samples((), ()), "single_label", "expected at least one sample"),
            (
                3,
                lambda samples: samples,
                "multi_label",
                r"labels of 3 numbers, .* the shape \(\) .* the task 'single_label'",
            ),
            (2, lambda samples: rows(samples, 3), "regression", r"labels of 2 numbers, .* the shape \(3,\)"),
            (3, lambda samples: rows(samples, 3), "single_label", "expected a class index per sample"),
        ],
        2,
    ),
)
def test_labels_that_do_not_fit_the_model_or_task_are_refused(classes, change, task, words, samples):
    with pytest.raises(ValueError, match=words):
        evaluate(Fixed(np.zeros((len(samples), classes))), change(samples), task=task)


@pytest.mark.parametrize("task", some(["multi_label", "regression"], 2))
def test_other_tasks_have_their_own_scores(task, samples, rng):
    rows = np.round(rng.uniform(size=(len(samples), 4))).astype("float32")
    logits = rng.standard_normal((len(samples), 4)).astype("float32")
    found = evaluate(Fixed(logits), Samples(samples.images, tuple(map(tuple, rows.tolist()))), 8, task)
    assert found == pytest.approx(getattr(evaluation, f"{task}_scores")(logits, rows))
    assert found["samples"] == len(samples)


class Brightest:
    """A segmentation model whose class of a pixel is its brightest channel."""

    task, is_classifier, num_classes, class_names = "segmentation", False, 3, ("red", "green", "blue")
    preprocessing = Preprocessing((8, 12))

    def predict_on_batch(self, images):
        return images


def scenes(sizes):
    """Images of pure colors of these sizes, and masks of their channels."""
    rng, pictures, masks = np.random.default_rng(3), [], []
    for height, width in sizes:
        mask = rng.integers(0, 3, (height // 4, width // 4), "uint8").repeat(4, 0).repeat(4, 1)
        pictures.append(encoded(Image.fromarray(255 * np.eye(3, dtype="uint8")[mask]), "PNG"))
        mask[0, 0] = 255
        masks.append(encoded(Image.fromarray(mask), "PNG"))
    return MaskSamples(tuple(pictures), tuple(masks), exif=False)


def test_class_maps_are_scored_at_the_images_own_sizes():
    samples = scenes([(8, 12), (20, 28), (8, 24), (8, 12), (16, 12)])
    predictions = predict(Brightest(), samples, 3, "segmentation")
    sizes = np.array([96, 560, 192, 96, 192]) - 1
    assert predictions.confusion_matrix.sum() == sizes.sum()
    images = np.split(predictions.pairs, predictions.lengths.cumsum()[:-1])
    assert [rows[:, 2].sum() for rows in images] == [*sizes]
    assert predictions.image_iou[0] == predictions.image_iou[3] == 1
    scores = evaluate(Brightest(), samples, 2, "segmentation")
    assert scores["samples"] == 5 and 0.8 < scores["mean_iou"] <= scores["pixel_accuracy"] < 1
    exact = evaluation.segmentation_scores(predict_maps(lambda image: image.argmax(-1), samples, 3))
    assert exact["mean_iou"] == exact["boundary_f"] == 1


def test_a_model_for_any_size_computes_each_image_at_its_own():
    options = {**SMALL, "image_size": (None, None), "position_grid": (2, 2), "num_classes": None}
    model = randomize(ImageSegmenter(VisionTransformer(**{**options, "num_layers": 1}), 3))
    samples = scenes([(16, 12), (20, 28), (8, 12)])
    predictions = predict(model, samples, 3, "segmentation")
    alone = [predict(model, samples.take([i]), task="segmentation").pairs for i in range(3)]
    np.testing.assert_array_equal(predictions.pairs, np.concatenate(alone))
    assert len({*predictions.pairs[:, 1]}) > 1


def test_class_maps_need_a_model_a_mask_and_a_map_of_the_same_classes():
    samples = scenes([(8, 12)])
    with pytest.raises(ValueError, match="a model whose outputs are class maps, for task 'segmentation'"):
        predict(small(), samples, task="segmentation")
    with pytest.raises(ValueError, match="expected at least one sample; got none"):
        predict(Brightest(), samples.take([]), task="segmentation")
    with pytest.raises(ValueError, match="expected at least one sample; got none"):
        predict_maps(np.zeros_like, samples.take([]), 3)
    with pytest.raises(ValueError, match="expected labels from 0 to 1; got . to 2"):
        predict_maps(lambda image: image[..., 0] * 0, samples, 2)
    with pytest.raises(ValueError, match=r"of one size; got \(2, 2\) and \(8, 12\)"):
        predict_maps(lambda image: np.zeros((2, 2)), samples, 3)
