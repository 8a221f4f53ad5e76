"""How transformers stores detectors of objects that words describe.

Sources: the modules `owlvit` and `owlv2` of transformers 5.23.
"""

import numpy as np

from keras_vit.tasks.image_text.huggingface import CLIP, apart, text_options, written_text_options
from keras_vit.weights.layouts.additions import HuggingFaceAdditions
from keras_vit.weights.layouts.huggingface_types import USAGE
from keras_vit.weights.layouts.layout import other_values, true_reasons
from keras_vit.weights.layouts.text_tower import NOT_BERT, WordDetectorForm, unsupported_text


class OwlViT(WordDetectorForm):
    """How transformers stores an `ObjectDetector` with a text tower: OWL-ViT, or OWLv2 with objectness.

    The projection of CLIP's image tower and the scale of its logits are in their files, but detection does
    not use them: they are written as zero and as CLIP's start.
    """

    usage = USAGE
    head = {"merge_class_token": True, "merge_norm_epsilon": None, "head_activation": "gelu_erf"}

    def text_options(self, folder):
        _, options = text_options(folder, CLIP.defaults)
        return {**options, **_OWL_TEXT}

    def unsupported(self, model, config):
        head = {**self.head, "query_size": model.text.hidden_size}
        resize = config["preprocessing"]["resize"]
        known = ("squash", "pad") if model.objectness else ("squash",)
        reason = f"preprocessing with resize={resize!r} (supported: {' or '.join(map(repr, known))})"
        return [
            *true_reasons({reason: resize not in known}),
            *other_values(vars(model), head),
            *unsupported_text(model.text, {**NOT_BERT, **_OWL_TEXT}),
        ]

    def write(self, model, arrays, others):
        prefix, size = f"{_owl_type(model)}.", (model.query_size, model.encoder.hidden_size)
        unused = {"visual_projection.weight": np.zeros(size), "logit_scale": np.array(_LOGIT_SCALE)}
        return {**arrays, **{prefix + key: array.astype("float32") for key, array in unused.items()}}

    def written_config(self, model, vision):
        name = _owl_type(model)
        kept, architectures = apart(vision)
        return {
            "architectures": architectures,
            "model_type": name,
            **kept,
            "projection_dim": model.query_size,
            "text_config": written_text_options(model.text, f"{name}_text_model"),
            "vision_config": vision,
        }


_OWL_TEXT = {"causal": True, "pooling": "argmax"}
_LOGIT_SCALE = 2.6592  # of CLIP before training: the logarithm of 1 / 0.07


def _owl_type(model):
    return "owlv2" if model.objectness else "owlvit"


ADDITIONS = HuggingFaceAdditions({"word_detector": OwlViT()})
