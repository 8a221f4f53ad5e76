"""What the names of points say."""

from made.tables import by_table

from keras_vit.tasks.keypoints.names import COCO_NAMES, SIGMA, default_sigmas, mirrored_by_name

NAMES = {
    "left and right": (["nose", "left_eye", "right_eye"], (0, 2, 1)),
    "sides at the end": (["eye_left", "eye_right"], (1, 0)),
    "other case": (["Left Eye", "Right Eye"], (1, 0)),
    "one letter": (["l_hip", "r_hip", "L", "R"], (1, 0, 3, 2)),
    "no space": (["LEye", "REye", "leftEar", "rightEar"], (1, 0, 3, 2)),
    "no partner": (["left_foot", "foot", "bright", "aright"], (0, 1, 2, 3)),
    "both sides": (["left_right", "right_left"], (0, 1)),
    "two of one side": (["left_eye", "Left_Eye", "right_eye"], (0, 2, 1)),
    "other letters": (["ojo-l", "ojo-r", "Überaum"], (1, 0, 2)),
}


@by_table("case", NAMES)
def test_names_say_which_points_are_mirror_images(case):
    names, expected = NAMES[case]
    assert mirrored_by_name(names) == expected


def test_sigmas_are_those_of_coco_for_its_points_alone():
    """Also with the names that transformers' ViTPose has."""
    sigmas = default_sigmas(COCO_NAMES, 17)
    assert sigmas[:3] == (0.026, 0.025, 0.025)
    assert sigmas[-6:] == (0.107, 0.107, 0.087, 0.087, 0.089, 0.089)
    short = [
        "Nose",
        *(name.replace("left_", "L_").replace("right_", "R_").title() for name in COCO_NAMES[1:]),
    ]
    assert default_sigmas(short, 17) == sigmas
    assert default_sigmas(COCO_NAMES[::-1], 17) == default_sigmas(None, 17) == (SIGMA,) * 17
