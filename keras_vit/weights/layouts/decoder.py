"""The decoder of a masked autoencoder (MAE) in a file, beside its encoder."""

from keras_vit.weights.json_files import read_json
from keras_vit.weights.layouts import hub_config
from keras_vit.weights.layouts.layout import ModelForm, other_values
from keras_vit.weights.layouts.table import Row, Table, torch_rows

POSITIONS = "decoder_position_embedding/table"  # stored, though fixed
DECODER_BLOCK = "decoder_block_{i}/"
_LAYERS = {"decoder_embedding": "decoder_embed", "decoder_norm": "decoder_norm", "prediction": "decoder_pred"}
_AUTHORS = {"decoder_num_heads": 16, "mask_fraction": 0.75, "normalize_targets": True}


class DecoderForm(ModelForm):
    """How a layout stores a `MaskedAutoencoder`; the names are the same in all of them, except in the blocks.

    Args:
        blocks: Rows of the blocks.
        prefix: What the decoder's keys begin with.
        options: dict from names in the layout's configuration to arguments of `MaskedAutoencoder`.
        defaults: dict of such arguments, which no array shows, if no configuration has them.
    """

    def __init__(self, blocks, prefix="", options=None, **defaults):
        tokens = (Row("mask_token/token", "mask_token"), Row(POSITIONS, "decoder_pos_embed"))
        rows = [*torch_rows(_LAYERS), *tokens, *blocks]
        self.table = Table(row._replace(theirs=prefix + row.theirs) for row in rows)
        self.names = options or {}
        self.defaults = {**_AUTHORS, **defaults}

    def options(self, folder):
        """The arguments of `MaskedAutoencoder` that no array shows.

        Args:
            folder: pathlib.Path of the file's folder, or None if its configuration is not read.
        """
        config = read_json(folder / hub_config.CONFIG, {}) if folder and self.names else {}
        stored = {ours: config[theirs] for theirs, ours in self.names.items() if theirs in config}
        return {**self.defaults, **stored}

    def unsupported(self, model, config):
        reasons = [] if config["class_token"] else ["an encoder without a class token"]
        return reasons if self.names else reasons + other_values(vars(model), self.defaults)

    def write(self, model, arrays, others):
        return {**arrays, **self.table.write(others)}
