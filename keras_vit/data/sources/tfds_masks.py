"""What the values of the masks in TensorFlow Datasets mean where its features do not say it."""

import dataclasses

from keras_vit.labels import IGNORE


@dataclasses.dataclass(frozen=True)
class KnownMasks:
    """The classes of a feature with masks.

    Args:
        class_names: The names of the classes.
        ids: The value of each class in the masks; other values are ignored.
        red: Whether the values are the red channel of a color image.
    """

    class_names: tuple[str, ...]
    ids: tuple[int, ...]
    red: bool = False

    @property
    def values(self):
        """The class of each of 256 values.

        >>> KNOWN_MASKS["oxford_iiit_pet", "segmentation_mask"].values[:5]
        (255, 0, 1, 2, 255)
        """
        return tuple(self.ids.index(value) if value in self.ids else IGNORE for value in range(256))


CITYSCAPES = {
    **{7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"},
    **{20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car"},
    **{27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"},
}
# By the names of the data set and the feature. Other data sets, VOC among them, have their classes in a
# feature `LabeledImage`.
KNOWN_MASKS = {
    ("oxford_iiit_pet", "segmentation_mask"): KnownMasks(("pet", "background", "border"), (1, 2, 3)),
    # ADE20K: TensorFlow Datasets prepares its annotations of instances, whose red channel is the class.
    ("scene_parse150", "annotation"): KnownMasks(
        tuple(map(str, range(1, 151))), tuple(range(1, 151)), red=True
    ),
    ("cityscapes", "segmentation_label"): KnownMasks(tuple(CITYSCAPES.values()), tuple(CITYSCAPES)),
}
