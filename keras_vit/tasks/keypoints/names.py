"""What the names of points say: which are those of two sides, and which are COCO's."""

import re

# Names of a person's points, and the sigmas by which distances are judged, as in COCO's evaluation.
COCO_SIGMAS = {
    **{"nose": 0.026, "eye": 0.025, "ear": 0.035, "shoulder": 0.079, "elbow": 0.072, "wrist": 0.062},
    **{"hip": 0.107, "knee": 0.087, "ankle": 0.089},
}
COCO_NAMES = ("nose", *(f"{side}_{part}" for part in [*COCO_SIGMAS][1:] for side in ("left", "right")))
SIGMA = 0.05  # of points without a sigma of their own
_OPPOSITE = {"left": "right", "right": "left"}
_LETTERS = {"l": "left", "r": "right"}
_BETWEEN_CASES = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W\d_]+|\d+")


def words_of(name):
    """The words of a name in lower case, of which `l` and `r` are left and right.

    >>> words_of("L_Eye"), words_of("leftEye"), words_of("RShoulder 2")
    (('left', 'eye'), ('left', 'eye'), ('right', 'shoulder', '2'))
    """
    words = (word.lower() for word in _WORD.findall(_BETWEEN_CASES.sub(" ", name)))
    return tuple(_LETTERS.get(word, word) for word in words)


def mirrored_by_name(names):
    """For each name the number of the one of the other side, or its own.

    >>> mirrored_by_name(["nose", "left_eye", "right_eye", "LEar", "REar", "left_foot"])
    (0, 2, 1, 4, 3, 5)
    """
    numbers, partners = {words_of(name): number for number, name in enumerate(names)}, []
    for number, name in enumerate(names):
        words = words_of(name)
        is_of_side = sum(word in _OPPOSITE for word in words) == 1
        opposite = tuple(_OPPOSITE.get(word, word) for word in words)
        partners.append(numbers.get(opposite, number) if is_of_side else number)
    pairs = (partner if partners[partner] == number else number for number, partner in enumerate(partners))
    return tuple(pairs)


def is_same_point(name, other):
    """Whether two names mean the same point.

    >>> is_same_point("L_Eye", "left_eye"), is_same_point("left_eye", "right_eye")
    (True, False)
    """
    return words_of(name) == words_of(other)


def are_same_points(names, others):
    """Whether two lists of names mean the same points, in the same order.

    >>> are_same_points(["Nose", "L_Eye"], ["nose", "left_eye"])
    True
    """
    return [*map(words_of, names)] == [*map(words_of, others)]


def default_sigmas(names, count):
    """The sigmas of COCO for its 17 points, by their names; else 0.05 for each point.

    >>> default_sigmas(COCO_NAMES, 17)[:2], default_sigmas(["a", "b"], 2)
    ((0.026, 0.025), (0.05, 0.05))
    """
    if names and are_same_points(names, COCO_NAMES):
        return tuple(COCO_SIGMAS[words_of(name)[-1]] for name in COCO_NAMES)
    return (SIGMA,) * count
