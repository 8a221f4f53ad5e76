"""scikit-learn's scanned digits."""

import numpy as np

from keras_vit.data.samples import Samples, hold_out_missing
from keras_vit.preprocessing.image_files import image_bytes


def load_digits(argument=None, *, seed, **options):
    """Load the class names and splits of the digits; of the arguments only `seed` is used.

    >>> load_digits(seed=0)["class_names"][:3]
    ('0', '1', '2')
    """
    from sklearn import datasets

    digits = datasets.load_digits()  # scans of 8×8 numbers from 0 to 16
    scans = tuple(image_bytes(np.round(scan * 255 / 16).astype("uint8")) for scan in digits.images)
    samples = Samples(scans, tuple(map(int, digits.target)), exif=False)
    names = tuple(map(str, digits.target_names))
    return {"class_names": names, "splits": hold_out_missing({"train": samples}, seed)}
