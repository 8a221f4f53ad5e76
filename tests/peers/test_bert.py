"""transformers' BERT and the text tower of LiT's files, whose arrays have the names of flaxformer."""

import numpy as np
import pytest
from peers.packages import torch, transformers
from peers.torch_models import randomized
from reference.comparing import assert_close, numpy
from reference.small import SMALL

from keras_vit import VisionTransformer, from_pretrained, save_weights

WIDTH, LAYERS, SIZE = 128, 3, 10
BLOCK = {
    "attention.self.query": "attention_block/attention_layer/query",
    "attention.self.key": "attention_block/attention_layer/key",
    "attention.self.value": "attention_block/attention_layer/value",
    "attention.output.dense": "attention_block/dense_layer",
    "attention.output.LayerNorm": "attention_block/layer_norm",
    "intermediate.dense": "mlp_block/mlp/dense_layer",
    "output.dense": "mlp_block/dense_layer",
    "output.LayerNorm": "mlp_block/layer_norm",
}


@pytest.fixture(scope="module")
def theirs():
    """A BERT as flaxformer's, whose GELU is the approximate one, and the projection behind it."""
    config = transformers.BertConfig(
        **{"vocab_size": 21, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2},
        **{"intermediate_size": 40, "max_position_embeddings": 512, "layer_norm_eps": 1e-12},
        hidden_act="gelu_pytorch_tanh",
    )
    bert = randomized(transformers.BertModel(config, add_pooling_layer=False), scale=0.1)
    return bert, randomized(torch.nn.Linear(WIDTH, SIZE), seed=2)


@pytest.fixture(scope="module")
def lit(theirs, tmp_path_factory):
    """A file of LiT with these weights."""
    bert, head = theirs
    stored = {name: array.numpy() for name, array in bert.state_dict().items()}

    def layer(path, name):
        leaves = ("scale", "bias") if name.endswith("LayerNorm") else ("kernel", "bias")
        arrays = stored[f"{name}.weight"].T, stored[f"{name}.bias"]
        return {f"txt/BertEncoder_0/{path}/{leaf}": array for leaf, array in zip(leaves, arrays)}

    arrays = layer("layer_norm", "embeddings.LayerNorm")
    for theirs, flax in {"word": "token", "position": "position", "token_type": "segment"}.items():
        key = f"txt/BertEncoder_0/embedder/embedders_{flax}_ids/embedding"
        arrays[key] = stored[f"embeddings.{theirs}_embeddings.weight"]
    for i in range(LAYERS):
        for name, path in BLOCK.items():
            inside = f"encoder_block/layer_sequence/layers_{i}/{path}"
            arrays |= layer(inside, f"encoder.layer.{i}.{name}")
    arrays |= {"txt/head/kernel": head.weight.detach().numpy().T, "txt/head/bias": head.bias.detach().numpy()}
    folder = tmp_path_factory.mktemp("lit")
    image = {**SMALL, "num_classes": SIZE, "prefix_positions": True}
    with np.load(save_weights(VisionTransformer(**image), folder / "image.npz", "vit_jax")) as written:
        arrays |= {f"img/{key}": array for key, array in written.items()}
    arrays["t"] = np.ones(1, "float32")
    np.savez(folder / "LiT.npz", **arrays)
    return folder / "LiT.npz"


def vectors_of(theirs, ids):
    bert, head = theirs
    ids = torch.from_numpy(ids).long()
    with torch.no_grad():
        tokens = bert(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        return torch.nn.functional.normalize(head(tokens[:, 0]), dim=-1).numpy()


def test_the_vectors_of_texts_are_theirs(theirs, lit, tmp_path):
    ids = np.random.default_rng(0).integers(3, 21, (5, 16)).astype("int32")
    for text, length in enumerate([16, 9, 2, 1, 15]):
        ids[text, length:] = 0
    expected = vectors_of(theirs, ids)
    model = from_pretrained(lit, kind="image_text")
    assert (model.text.num_layers, model.text.num_heads, model.text.length) == (LAYERS, 2, 16)
    assert_close(model.text_encoder(ids), expected)
    again = save_weights(model, tmp_path / "again.npz", "vit_jax")
    with np.load(lit) as before, np.load(again) as after:
        assert {key: a.shape for key, a in after.items()} == {key: a.shape for key, a in before.items()}
    again = from_pretrained(again, kind="image_text")
    assert_close(again.text_encoder(ids), numpy(model.text_encoder(ids)), 1e-6)
