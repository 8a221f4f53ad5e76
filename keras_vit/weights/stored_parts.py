"""What a checkpoint holds of a model: its VisionTransformer, and what each kind of model has beside it."""

from keras_vit.engine.adapting import plain_arrays
from keras_vit.models.configured import backbone


class StoredParts:
    """A VisionTransformer as layouts write it; for each other kind of model there is a subclass.

    Args:
        model: The model to write.
    """

    has_text_tower = False
    is_in_timm = True  # whether timm has a class for such a model
    has_pipeline = True  # whether a pipeline of transformers reads its files
    prefix_positions = True  # whether the position table gets or loses rows for the prefix tokens

    def __init__(self, model):
        self.model = model

    def split(self):
        """Take the VisionTransformer out of the model; other arrays are kept for `written`.

        Returns:
            (dict of the VisionTransformer's arrays by our names, its `get_config()`).
        """
        return plain_arrays(self.model), backbone(self.model).get_config()

    def check(self, layout):
        """Raise ValueError if the named layout has no form at all for this kind of model."""

    def unsupported(self, layout, config):
        """List why the named layout cannot express what is beside a VisionTransformer of `config`."""
        return []

    def written(self, layout, arrays, **options):
        """The arrays of the file.

        Args:
            layout: Name of the layout.
            arrays: dict of the VisionTransformer's arrays by the file's keys.
            **options: Those of `save_weights`.

        Returns:
            dict of arrays by the file's keys.
        """
        return arrays

    def head(self):
        """The class count and the names of the classes, as configuration files tell them."""
        model = self.model
        return {"num_classes": model.num_classes, "class_names": model.class_names}

    def described(self, config):
        """The configuration that is saved next to the file."""
        return {**config, "class_names": self.head()["class_names"]}

    def config_text(self, layout, text):
        """The text of the layout's configuration file, from that of the VisionTransformer."""
        return text

    def files(self):
        """Other files in a layout's folder: dict of bytes by name."""
        return {}

    def hub_words(self):
        """The hub's name of the task, what the model does, and the arguments by which it is read."""
        if classes := self.model.num_classes:
            return "image-classification", f"classification into {classes} classes", ""
        return "image-feature-extraction", "feature vectors of images", ""


class PartsAround(StoredParts):
    """The parts of a model without a head of classes, around a VisionTransformer.

    A subclass has `pattern`, a regular expression of the names of the other arrays, which become `others`.
    """

    is_in_timm = has_pipeline = False
    pattern = None

    def split(self):
        arrays, config = super().split()
        self.others = {name: x for name, x in arrays.items() if self.pattern.fullmatch(name)}
        return {name: x for name, x in arrays.items() if name not in self.others}, config

    def head(self):
        transformer = backbone(self.model)
        return {"num_classes": transformer.num_classes, "class_names": transformer.class_names}
