"""COCO's scores: those of pycocotools and faster-coco-eval, and ours."""

import contextlib
import io
import json

import numpy as np
import pytest
from made.detections import images_of, random_predictions
from made.instances import random_images
from peers.packages import faster_coco_eval
from PIL import Image

from keras_vit.data import load_dataset
from keras_vit.data.batches import box_batches
from keras_vit.evaluation import MaskPredictions, detection_classes, detection_scores, mask_average_precision
from keras_vit.labels.box_rows import COLUMNS
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.detection.coco_output import coco_parts
from keras_vit.tasks.detection.detecting import Detections
from keras_vit.tasks.detection.scores import DetectionPredictions, predictions_of

REASON = "pycocotools is not installed; see requirements-peers.txt"
pycocotools_coco = pytest.importorskip("pycocotools.coco", reason=REASON)
pycocotools_cocoeval = pytest.importorskip("pycocotools.cocoeval", reason=REASON)
pycocotools_mask = pytest.importorskip("pycocotools.mask", reason=REASON)
NAMES = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large"),
)
CASES, MASK_CASES = 1000, 400


def coco_scores(predictions, coco, evaluation, masks=None):
    """The twelve scores of a package with the interface of pycocotools, and the AP of each class.

    Args:
        predictions: `DetectionPredictions`.
        coco, evaluation: The classes of the package.
        masks: The masks of all detections and of all objects, which are compared; None: boxes are.
    """
    images, annotations, results = [], [], []
    for number, (detections, truth) in enumerate(images_of(predictions)):
        images.append({"id": number, "width": 400, "height": 400})
        for left, top, right, bottom, of_class, crowd, area in truth.tolist():
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": int(of_class),
                    "bbox": [left, top, right - left, bottom - top],
                    "iscrowd": int(crowd),
                    "area": area,
                }
            )
        for left, top, right, bottom, of_class, score in detections.tolist():
            box = [left, top, right - left, bottom - top]
            results.append({"image_id": number, "category_id": int(of_class), "bbox": box, "score": score})
    for rows, own in zip((results, annotations), masks or ()):
        for row, mask in zip(rows, own, strict=True):
            row["segmentation"] = pycocotools_mask.encode(np.asfortranarray(mask, "uint8"))
            if rows is results:
                del row["bbox"]  # which pycocotools would take for what is compared
    categories = [{"id": number, "name": str(number)} for number in range(predictions.num_classes)]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco()
        truth.dataset = {"images": images, "annotations": annotations, "categories": categories}
        truth.createIndex()
        found = evaluation(truth, truth.loadRes(results), iouType="bbox" if masks is None else "segm")
        found.evaluate()
        found.accumulate()
        found.summarize()
    of_classes = found.eval["precision"][:, :, :, 0, 2]
    means = [np.mean(of[of > -1]) if (of > -1).any() else -1 for of in np.moveaxis(of_classes, 2, 0)]
    return np.array(found.stats[:12], "float64"), np.array(means)


def classes_of(package):
    if package == "pycocotools":
        return pycocotools_coco.COCO, pycocotools_cocoeval.COCOeval
    return faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster


every_package = pytest.mark.parametrize("package", ["pycocotools", "faster_coco_eval"])


def assert_same_scores(predictions, expected, of_classes):
    scores, classes = detection_scores(predictions), detection_classes(predictions)
    found = [-1 if scores[name] is None else scores[name] for name in NAMES]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    found = [-1 if row["ap"] is None else row["ap"] for row in classes]
    np.testing.assert_allclose(found, of_classes, rtol=0, atol=1e-9)


@pytest.mark.slow
@every_package
def test_average_precision_is_that_of_other_packages(package, rng):
    compared = 0
    while compared < CASES:
        predictions = random_predictions(rng)
        if not len(predictions.detections):  # Their readers refuse results without rows.
            continue
        assert_same_scores(predictions, *coco_scores(predictions, *classes_of(package)))
        compared += 1


@pytest.mark.slow
@every_package
def test_average_precision_of_masks_is_that_of_other_packages(package, rng):
    compared = 0
    while compared < MASK_CASES:
        found, truth, classes = random_images(rng)
        predictions = MaskPredictions.of(found, truth, classes)
        if not len(predictions.detections):
            continue
        masks = [[mask for one in each for mask in one.masks] for each in (found, truth)]
        assert_same_scores(predictions, *coco_scores(predictions, *classes_of(package), masks))
        of_boxes = coco_scores(predictions.of_boxes(), *classes_of(package))
        assert_same_scores(predictions.of_boxes(), *of_boxes)
        both = mask_average_precision(found, truth, classes)
        assert both["ap"] == detection_scores(predictions)["ap"]
        np.testing.assert_allclose(both["box_ap50"] or 0, max(of_boxes[0][1], 0), rtol=0, atol=1e-9)
        compared += 1


@pytest.mark.slow
def test_a_file_of_predictions_is_read_by_pycocotools(rng, tmp_path):
    names = ["a", "b", "c"]
    results = [
        {
            "image": f"{number}.png",
            "width": 100,
            "height": 80,
            "objects": [
                {"name": str(name), "score": score, **dict(zip(COLUMNS, (*corner, *(corner + side))))}
                for name, score, corner, side in zip(
                    rng.choice(names, count),
                    sorted(rng.random(count), reverse=True),
                    rng.uniform(0, 40, (count, 2)),
                    rng.uniform(1, 40, (count, 2)),
                )
            ],
        }
        for number, count in enumerate((3, 0, 5))
    ]
    (tmp_path / "found.coco.json").write_text("".join(coco_parts(results, names, tmp_path)))
    with contextlib.redirect_stdout(io.StringIO()):
        content = pycocotools_coco.COCO(tmp_path / "found.coco.json")
        found = content.loadRes(content.dataset["annotations"])
    assert [content.imgs[number]["file_name"] for number in (1, 2, 3)] == ["0.png", "1.png", "2.png"]
    for number, result in enumerate(results, 1):
        rows = found.loadAnns(found.getAnnIds(imgIds=number))
        for row, one in zip(rows, result["objects"], strict=True):
            left, top, right, bottom = (one[side] for side in COLUMNS[:4])
            assert (names[row["category_id"] - 1], row["score"]) == (one["name"], one["score"])
            assert row["bbox"] == [left, top, right - left, bottom - top]


@pytest.mark.slow
@every_package
def test_average_precision_through_a_folder_of_coco_is_that_of_other_packages(package, rng, tmp_path):
    """Objects at the limits of sizes, and detections at the thresholds of the IoU, in images of odd sizes."""
    images, annotations, detections = [], [], []
    for number in range(60):
        height, width = rng.integers(150, 700, 2).tolist()
        Image.new("L", (width, height)).save(tmp_path / f"{number:02}.png")
        images.append({"id": number, "file_name": f"{number:02}.png", "width": width, "height": height})
        rows = []
        for _ in range(rng.integers(1, 6)):
            box = [*np.round(rng.uniform(0, 50, 2), 2).tolist(), *rng.choice([32, 96, 24.75, 0], 2).tolist()]
            own = {"id": len(annotations) + 1, "image_id": number, "category_id": int(rng.integers(1, 4))}
            crowd = int(rng.random() < 0.1)
            annotations.append({**own, "bbox": box, "area": box[2] * box[3], "iscrowd": crowd})
            left, top, of_width, of_height = box
            part = rng.choice([0.5, 0.75, 1])
            rows.append((left, top, left + of_width, top + of_height * part, own["category_id"] - 1))
        rows, scores = np.float32(rows), np.sort(np.float32(rng.random(len(rows))))[::-1]
        detections.append(Detections(rows[:, :4], scores, rows[:, 4].astype(int)))
    content = {"images": images, "annotations": annotations}
    content["categories"] = [{"id": number, "name": str(number)} for number in (1, 2, 3)]
    (tmp_path / "labels.json").write_text(json.dumps(content))
    samples = load_dataset(f"folder:{tmp_path}", task="detection", seed=None).split("train")
    boxes = [
        (rows[:count], size)
        for _, padded, counts, sizes in box_batches(samples, Preprocessing(8), 16).as_numpy_iterator()
        for rows, count, size in zip(padded, counts, sizes)
    ]
    predictions = predictions_of(detections, *zip(*boxes), 3)
    as_file = DetectionPredictions(
        predictions.counts,
        predictions.detections,
        np.array(
            [
                [*corners(one["bbox"]), one["category_id"] - 1, one["iscrowd"], one["area"]]
                for one in annotations
            ]
        ),
        3,
    )
    assert_same_scores(predictions, *coco_scores(as_file, *classes_of(package)))


def corners(box):
    left, top, width, height = box
    return left, top, left + width, top + height
