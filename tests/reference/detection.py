"""COCO's average precision and the loss of a detector, written out for one image and one box at a time."""

import numpy as np
from made.detections import images_of
from scipy.optimize import linear_sum_assignment

RANGES = {"all": (0, 1e10), "small": (0, 1024), "medium": (1024, 9216), "large": (9216, 1e10)}


def iou_of(box, other, is_crowd=False):
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    own, others = ((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
    return width * height / (own if is_crowd else own + others - width * height)


def average_precision(predictions, threshold, area="all"):
    """The mean over the classes of the average precision at one IoU threshold; None without objects."""
    low, high = RANGES[area]
    values = []
    for number in range(predictions.num_classes):
        found, objects = [], 0
        for detections, truth in images_of(predictions):
            truth = [row for row in truth.tolist() if row[4] == number]
            counts = [not crowd and low <= size <= high for *_, crowd, size in truth]
            objects += sum(counts)
            taken = [False] * len(truth)
            own = sorted((d for d in detections.tolist() if d[4] == number), key=lambda d: -d[5])[:100]
            for detection in own:
                best, best_key = None, None
                for place, row in enumerate(truth):
                    overlap = iou_of(detection, row, row[5])
                    if overlap < threshold or (taken[place] and not row[5]):
                        continue
                    key = (counts[place], overlap, place)
                    if best is None or key > best_key:
                        best, best_key = place, key
                size = (detection[2] - detection[0]) * (detection[3] - detection[1])
                if best is not None:
                    taken[best] = True
                if counts[best] if best is not None else low <= size <= high:
                    found.append((detection[5], best is not None))
        if objects:
            values.append(_area_below(found, objects))
    return float(np.mean(values)) if values else None


def _area_below(found, objects):
    """The mean precision at 101 recalls of (score, is right), which are in the order of their images."""
    right, points = 0, []
    for count, (_, is_right) in enumerate(sorted(found, key=lambda row: -row[0]), 1):
        right += is_right
        points.append((right / objects, right / count))
    total = 0.0
    for recall in np.linspace(0, 1, 101):
        total += max((precision for reached, precision in points if reached >= recall), default=0.0)
    return total / 101


def detection_loss(rows, outputs):
    """The loss of one image in float64: rows (boxes, 7) and outputs (patches, 4 + classes)."""
    outputs = np.asarray(outputs, "float64")
    rows = [row for row in np.asarray(rows, "float64") if row[4] >= 0 and not row[5]]
    probability = 1 / (1 + np.exp(-outputs[:, 4:]))
    right = -0.3 * (1 - probability) ** 2 * np.log(probability)
    wrong = -0.7 * probability**2 * np.log1p(-probability)
    boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in outputs[:, :4]]
    costs = np.zeros((len(rows), len(outputs)))
    for i, row in enumerate(rows):
        center = ((row[0] + row[2]) / 2, (row[1] + row[3]) / 2, row[2] - row[0], row[3] - row[1])
        for j, box in enumerate(boxes):
            costs[i, j] = (right - wrong)[j, int(row[4])] - giou_of(box, row)
            costs[i, j] += sum(abs(a - b) for a, b in zip(outputs[j, :4], center))
    pairs = [*zip(*linear_sum_assignment(costs))]
    loss = wrong.sum()
    for i, j in pairs:
        row, number = rows[i], int(rows[i][4])
        loss += right[j, number] - wrong[j, number]
        loss += sum(abs(a - b) for a, b in zip(boxes[j], row)) + 1 - giou_of(boxes[j], row)
    return loss / max(len(rows), 1)


def giou_of(box, other):
    around = (max(box[2], other[2]) - min(box[0], other[0])) * (max(box[3], other[3]) - min(box[1], other[1]))
    common = max(min(box[2], other[2]) - max(box[0], other[0]), 0)
    common *= max(min(box[3], other[3]) - max(box[1], other[1]), 0)
    union = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other)) - common
    return common / union - (around - union) / around
