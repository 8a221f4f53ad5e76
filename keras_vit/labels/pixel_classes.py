"""The number of pixels without a label."""

IGNORE = 255  # the number of pixels without a label, as in the masks of VOC and Cityscapes


def check_class_count(num_classes):
    """Raise ValueError if one of so many classes had the number of pixels without a label.

    >>> check_class_count(256)
    Traceback (most recent call last):
    ValueError: expected at most 255 classes, since 255 marks pixels without a label; got 256
    """
    if num_classes > IGNORE:
        raise ValueError(
            f"expected at most {IGNORE} classes, since {IGNORE} marks pixels without a label; "
            f"got {num_classes}"
        )
