"""Keypoints that a model has found, as COCO JSON."""

from keras_vit.tasks.detection.coco_output import parts_of_file
from keras_vit.tasks.keypoints.labels import VISIBLE


def coco_parts(results, names, folder):
    """The parts of the text of a COCO JSON file: `annotations` with a `score`, `images` and `categories`.

    Each image has one annotation. Points are pixels by their centers, half a pixel less than from edge to
    edge; one that is left out is three zeros. Images are named as by `detection.coco_output.coco_parts`.

    Args:
        results: An iterator of what `cli.image_batches.predicted` yields for a keypoint estimator.
        names: Of the points.
        folder: Of the file.

    Example:
        >>> found = {"name": "nose", "score": 0.5, "x": 1.5, "y": 2.5}
        >>> result = {"image": "a/1.png", "width": 8, "height": 6, "score": 0.5, "keypoints": [found]}
        >>> content = json.loads("".join(coco_parts([result], ["eye", "nose"], "a")))
        >>> content["categories"]
        [{'id': 1, 'name': 'object', 'keypoints': ['eye', 'nose']}]
        >>> [annotation] = content["annotations"]
        >>> annotation["keypoints"], annotation["score"]
        ([0, 0, 0, 1.0, 2.0, 2], 0.5)

    Source: COCO's formats of data and of results (cocodataset.org, "Data format" and "Results format").
    """

    def annotations(found):
        points = {
            point["name"]: [point["x"] - 0.5, point["y"] - 0.5, VISIBLE] for point in found["keypoints"]
        }
        triples = sum((points.get(name, [0, 0, 0]) for name in names), [])
        yield {
            **{"category_id": 1, "score": found["score"], "keypoints": triples},
            "num_keypoints": len(points),
        }

    categories = [{"id": 1, "name": "object", "keypoints": [*names]}]
    return parts_of_file(results, annotations, categories, folder)
