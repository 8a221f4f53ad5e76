"""How transformers stores masked autoencoders.

Source: the module `vit_mae` of transformers 5.23.
"""

from keras_vit.weights.layouts.additions import HuggingFaceAdditions
from keras_vit.weights.layouts.decoder import DECODER_BLOCK, DecoderForm
from keras_vit.weights.layouts.huggingface_type_table import written_type
from keras_vit.weights.layouts.huggingface_types import USAGE, VIT_BLOCK, VIT_BLOCK_IN_MEMORY
from keras_vit.weights.layouts.table import torch_rows

_ONLY_IN_MEMORY = dict(VIT_BLOCK_IN_MEMORY.items() - VIT_BLOCK.items())
_DECODER_OPTIONS = {  # transformers' names of options that no array shows, and ours
    "decoder_num_attention_heads": "decoder_num_heads",
    "mask_ratio": "mask_fraction",
    "norm_pix_loss": "normalize_targets",
}


class ViTMAE(DecoderForm):
    """How transformers stores a `MaskedAutoencoder`: `ViTMAEForPreTraining`, whose encoder is a `vit`."""

    usage = USAGE

    def __init__(self):
        blocks = [
            *torch_rows(VIT_BLOCK, DECODER_BLOCK, "decoder_layers.{i}."),
            *torch_rows(VIT_BLOCK, DECODER_BLOCK, "decoder_encoder.layer.{i}."),  # of transformers 5
            *torch_rows(_ONLY_IN_MEMORY, DECODER_BLOCK, "decoder_layers.{i}."),
        ]
        super().__init__(blocks, "decoder.", _DECODER_OPTIONS, normalize_targets=False)

    def unsupported(self, model, config):
        towers = written_type(config).name
        other_type = f"an encoder of the type {towers!r} (supported: 'vit')"
        return super().unsupported(model, config) + [other_type] * (towers != "vit")

    def write(self, model, arrays, others):
        return super().write(model, {f"vit.{key}": array for key, array in arrays.items()}, others)

    def written_config(self, model, values):
        return {
            **values,
            **{"architectures": ["ViTMAEForPreTraining"], "model_type": "vit_mae"},
            **{theirs: getattr(model, ours) for theirs, ours in self.names.items()},
            "decoder_hidden_size": model.decoder_hidden_size,
            "decoder_num_hidden_layers": model.decoder_num_layers,
            "decoder_intermediate_size": model.decoder_mlp_dim or 4 * model.decoder_hidden_size,
        }


ADDITIONS = HuggingFaceAdditions({"masked_autoencoder": ViTMAE()})
