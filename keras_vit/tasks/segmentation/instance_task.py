"""The objects that a segmenter finds by its queries, as `predict` lists them."""

from keras_vit.messages import article, did_you_mean, listed
from keras_vit.tasks.detection.task import object_rows
from keras_vit.tasks.segmentation.task import Segmentation
from keras_vit.tasks.task import names_or_indices

SHOWN = 0.5  # the least score of an object in a row of `predict`


class InstanceSegmentation(Segmentation):
    """Segmentation whose rows are objects; a name does not find it, since its labels are class maps."""

    top = 100

    def check_model(self, model):
        if not hasattr(model, "query_predictions"):
            named = article(type(model).__name__)
            raise ValueError(f"objects with masks need an ImageSegmenter with head='mask'; got {named}")
        model.query_predictions()

    def rows(self, model, paths, inputs, top, threshold=SHOWN, iou=None, things=None, write=None):
        """As in `Detection`, with `Instances` for `write`; `things` are the classes that have objects."""
        most = top if iou is None else max(top, self.top)
        objects = (model.instances([image], threshold, most, things)[0] for image in inputs)
        return object_rows(model, paths, inputs, objects, top, iou, iou, write)

    def things(self, model, names):
        """The numbers of classes by their names; ValueError for one that the model does not have."""
        known = names_or_indices(model.class_names, model.num_classes)
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ValueError(f"expected things among {listed(known)}; got {name!r}{hint}")
        return [known.index(name) for name in names]


INSTANCES = InstanceSegmentation()
