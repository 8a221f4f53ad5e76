"""Keypoints that a model has found, as COCO JSON."""

from keras_vit.tasks.detection.coco_output import parts_of_file
from keras_vit.tasks.keypoints.labels import VISIBLE


def coco_parts(results, names, folder):
    """The parts of the text of a COCO JSON file: `annotations` with a `score`, `images` and `categories`.

    Each object has an annotation, with `bbox` and `area` if it has a box. Points are pixels by their centers,
    half a pixel less than from edge to edge; one that is left out is three zeros. Images are named as by
    `detection.coco_output.coco_parts`.

    Args:
        results: An iterator of what `cli.image_batches.predicted` yields for a keypoint estimator.
        names: Of the points.
        folder: Of the file.

    Example:
        >>> import json
        >>> found = {"score": 0.5, "points": [{"name": "nose", "score": 0.5, "x": 1.5, "y": 2.5}]}
        >>> result = {"image": "a/1.png", "width": 8, "height": 6, "keypoints": [found]}
        >>> content = json.loads("".join(coco_parts([result], ["eye", "nose"], "a")))
        >>> content["categories"]
        [{'id': 1, 'name': 'object', 'keypoints': ['eye', 'nose']}]
        >>> [annotation] = content["annotations"]
        >>> annotation["keypoints"], annotation["score"]
        ([0, 0, 0, 1.0, 2.0, 2], 0.5)

    Source: COCO's formats of data and of results (cocodataset.org, "Data format" and "Results format").
    """

    def annotations(found):
        for one in found["keypoints"]:
            points = {point["name"]: [point["x"] - 0.5, point["y"] - 0.5, VISIBLE] for point in one["points"]}
            triples = sum((points.get(name, [0, 0, 0]) for name in names), [])
            yield {
                **{"category_id": 1, "score": one["score"], "keypoints": triples},
                **{"num_keypoints": len(points), **_box(one)},
            }

    categories = [{"id": 1, "name": "object", "keypoints": [*names]}]
    return parts_of_file(results, annotations, categories, folder)


def _box(one):
    """COCO's box and area of an object that has a box."""
    if "left" not in one:
        return {}
    width, height = one["right"] - one["left"], one["bottom"] - one["top"]
    return {"bbox": [one["left"], one["top"], width, height], "area": width * height, "iscrowd": 0}
