"""COCO's scores: those of pycocotools and faster-coco-eval, and ours."""

import contextlib
import io

import numpy as np
import pytest
from made.detections import images_of, random_predictions
from peers.packages import faster_coco_eval

from keras_vit.evaluation import detection_classes, detection_scores

REASON = "pycocotools is not installed; see requirements-peers.txt"
pycocotools_coco = pytest.importorskip("pycocotools.coco", reason=REASON)
pycocotools_cocoeval = pytest.importorskip("pycocotools.cocoeval", reason=REASON)
NAMES = (
    *("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large"),
    *("ar_1", "ar_10", "ar_100", "ar_small", "ar_medium", "ar_large"),
)
CASES = 1000


def coco_scores(predictions, coco, evaluation):
    """The twelve scores of a package with the interface of pycocotools, and the AP of each class."""
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
    categories = [{"id": number, "name": str(number)} for number in range(predictions.num_classes)]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco()
        truth.dataset = {"images": images, "annotations": annotations, "categories": categories}
        truth.createIndex()
        found = evaluation(truth, truth.loadRes(results), iouType="bbox")
        found.evaluate()
        found.accumulate()
        found.summarize()
    of_classes = found.eval["precision"][:, :, :, 0, 2]
    means = [np.mean(of[of > -1]) if (of > -1).any() else -1 for of in np.moveaxis(of_classes, 2, 0)]
    return np.array(found.stats[:12], "float64"), np.array(means)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["pycocotools", "faster_coco_eval"])
def test_average_precision_is_that_of_other_packages(package, rng):
    if package == "pycocotools":
        parts = pycocotools_coco.COCO, pycocotools_cocoeval.COCOeval
    else:
        parts = faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster
    compared = 0
    while compared < CASES:
        predictions = random_predictions(rng)
        if not len(predictions.detections):  # Their readers refuse results without rows.
            continue
        expected, of_classes = coco_scores(predictions, *parts)
        scores, classes = detection_scores(predictions), detection_classes(predictions)
        found = [-1 if scores[name] is None else scores[name] for name in NAMES]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
        found = [-1 if row["ap"] is None else row["ap"] for row in classes]
        np.testing.assert_allclose(found, of_classes, rtol=0, atol=1e-9)
        compared += 1
