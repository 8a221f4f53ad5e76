from reference.small import one_block

from keras_vit import Preprocessing, VisionTransformer
from keras_vit.weights.model_digest import model_digest


def test_the_digest_is_of_weights_options_preprocessing_and_tokenizer():
    model = one_block(num_classes=None)
    digest = model_digest(model)
    config = model.get_config()
    for change, is_same in (
        ({"name": "other", "class_names": None}, True),
        ({"dropout_rate": 0.1}, True),
        ({"activation": "gelu_erf"}, False),
        ({"preprocessing": Preprocessing(16, mean=(0.4, 0.5, 0.6))}, False),
    ):
        changed = VisionTransformer.from_config({**config, **change})
        changed.set_weights(model.get_weights())
        assert (model_digest(changed) == digest) == is_same
    weights = model.get_weights()
    model.set_weights([weights[0] + 1, *weights[1:]])
    assert model_digest(model) != digest
