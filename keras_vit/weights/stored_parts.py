"""What a checkpoint holds of a model: its VisionTransformer, and what each kind of model has beside it."""

import re

from keras_vit.engine.adapting import plain_arrays
from keras_vit.models.backbones import backbone


class StoredParts:
    """A VisionTransformer; for each other kind of model there is a subclass.

    Args:
        model: The model to write.

    Attributes:
        form: Name of the `ModelForm` in `Layout.forms`.
        missing: Why a layout without this form cannot express the model.
        prefix_positions: Whether the position table gets or loses rows for the prefix tokens.
        pattern: Pattern of the names of the arrays that are not the VisionTransformer's, if a layout has
            them apart: `split` makes them `others`.
    """

    form = "classifier"
    missing = "no text tower"  # in an open_clip model
    prefix_positions = True
    pattern = re.compile("(?!)")

    def __init__(self, model):
        self.model = model

    def split(self):
        """Take the VisionTransformer out of the model; other arrays are kept as `others`.

        Returns:
            (dict of the VisionTransformer's arrays by our names, its `get_config()`).
        """
        arrays = plain_arrays(self.model)
        self.others = {name: array for name, array in arrays.items() if self.pattern.fullmatch(name)}
        arrays = {name: array for name, array in arrays.items() if name not in self.others}
        return arrays, backbone(self.model).get_config()

    def classifier(self):
        """The model with the classes."""
        return backbone(self.model)

    def head(self):
        """The class count and the names of the classes, as configuration files tell them."""
        return {"num_classes": self.classifier().num_classes, "class_names": self.classifier().class_names}

    def described(self, config):
        """The configuration that is saved next to the file."""
        return {**config, "class_names": self.classifier().class_names}

    def files(self):
        """Other files in a layout's folder, those of a tokenizer: dict of bytes by name."""
        texts = self.model.text_preprocessing
        return texts.files() if texts else {}

    def hub_words(self):
        """The hub's name of the task, what the model does, and the arguments by which it is read."""
        if classes := self.model.num_classes:
            return "image-classification", f"classification into {classes} classes", ""
        return "image-feature-extraction", "feature vectors of images", ""


class PaletteParts(StoredParts):
    """The parts of an `ImageGPT`."""

    form = "image_gpt"
    missing = "a palette"

    def hub_words(self):
        task = "unconditional-image-generation"
        return task, "generation of images, pixel by pixel", ', kind="pretrainer"'


class HeadedParts(StoredParts):
    """A model with an encoder and one of several heads, of which one has a layout.

    Attributes:
        plural: What such models are called.
        stored_head: The head that has a layout.
    """

    plural = stored_head = None

    def __init__(self, model):
        super().__init__(model)
        self.form = f"{model.head}_{model.kind}"
        self.missing = (
            f"of {self.plural} only head={self.stored_head!r} has a layout, 'huggingface'; save its "
            f"`encoder` (num_classes=0 of a file), or all of it as .keras; got head={model.head!r}"
        )

    def classifier(self):
        return self.model
