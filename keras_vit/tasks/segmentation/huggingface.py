"""How transformers stores segmenters by queries.

Sources: the modules `eomt` and `eomt_dinov3` of transformers 5.23.
"""

import numpy as np

from keras_vit.layers.segmentation_head import QueryAttentionBias
from keras_vit.tasks.segmentation.loss import NO_OBJECT_WEIGHT
from keras_vit.weights.layouts.additions import HuggingFaceAdditions
from keras_vit.weights.layouts.huggingface_types import MASK_PROBABILITIES, USAGE
from keras_vit.weights.layouts.layout import HeadOptions, ModelForm


class Eomt(ModelForm):
    """How transformers stores an `ImageSegmenter` with head "mask".

    `config["segmentation"]` has the options of the head, for the configuration.
    """

    usage = USAGE
    kind = "segmenter"

    def has_head(self, arrays):
        return {"queries/token", "class_head/kernel"} <= arrays.keys()

    def head_options(self, checkpoint, layout, folder):
        arrays, keys, encoder = checkpoint.arrays, checkpoint.keys, checkpoint.arguments
        probabilities = arrays.pop(MASK_PROBABILITIES, np.zeros(0))
        masked = bool(np.any(probabilities > 0))
        first = encoder["num_layers"] - len(probabilities)
        # One array for each block with queries, if these mask.
        for i, probability in enumerate(probabilities if masked else ()):
            name = f"query_mask_{first + i}/probability"
            arrays[name], keys[name] = np.asarray(probability), keys[MASK_PROBABILITIES]
        return {
            "num_classes": arrays["class_head/kernel"].shape[-1] - 1,
            "head": "mask",
            "num_queries": arrays["queries/token"].shape[-2],
            "query_blocks": max(len(probabilities), 1),
            "upscale_blocks": sum(name.endswith("/depthwise/kernel") for name in arrays),
            # Theirs with DINOv2's gated MLPs has another activation in the head.
            "head_activation": encoder["activation"] if encoder.get("rotary") else None,
            "masked_attention": masked,
        }

    def adapted(self, model, arrays, config):
        masks = [layer for layer in model.layers if isinstance(layer, QueryAttentionBias)]
        probabilities = [float(layer.probability.numpy()) for layer in masks] or [0.0] * model.query_blocks
        mask_paths = {layer.probability.path for layer in masks}
        upscale = sum(name.endswith("/depthwise/kernel") for name in arrays)
        options = {
            "num_queries": model.num_queries,
            "query_blocks": model.query_blocks,
            "upscale_blocks": upscale,
            "activation": model.get_layer("upscale_0").activation if upscale else model.encoder.activation,
        }
        arrays = {name: array for name, array in arrays.items() if name not in mask_paths}
        arrays[MASK_PROBABILITIES] = np.array(probabilities, "float32")
        return arrays, {**config, "segmentation": HeadOptions(options)}

    def write(self, model, arrays, others):
        weights = np.ones(model.num_classes + 1, "float32")
        weights[-1] = NO_OBJECT_WEIGHT
        return {**arrays, "criterion.empty_weight": weights}


ADDITIONS = HuggingFaceAdditions({"mask_segmenter": Eomt()})
