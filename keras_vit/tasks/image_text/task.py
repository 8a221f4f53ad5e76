"""Pairs of images and texts: which text describes which image."""

import dataclasses

from keras_vit.models import ImageTextModel
from keras_vit.models.backbones import image_model
from keras_vit.preprocessing.text_preprocessing import FAMILIES
from keras_vit.tasks import get_task
from keras_vit.tasks.image_text.pair_scores import SIDES, PairRecall
from keras_vit.tasks.task import Task


class Pairs(Task):
    """The loss of an `ImageTextModel`, scored by recall in each batch; for recipes with `image_text`."""

    validation_metric = "image_to_text_recall_1"
    higher_is_better = True
    reads_texts = True
    recipe_fields = ("image_text", "tokenizer", "class_weights")

    def check_recipe(self, recipe):
        refused = (recipe.task != "single_label", recipe.class_weights is not None, recipe.mixes)
        if any(refused) or recipe.label_smoothing or recipe.accumulation_steps > 1:
            raise ValueError(
                "image_text compares whole batches of pairs: expected no other task, label_smoothing, "
                "class_weights, mixup, cutmix or accumulation_steps"
            )

    def metrics(self, model):
        return [PairRecall(of, k) for of in SIDES for k in (1, 5)]

    def options(self, dataset):
        if getattr(dataset, "texts", None) is None:
            raise ValueError(
                "a recipe with image_text needs a data set with texts, such as digits_words or a folder with "
                "captions"
            )
        return super().options(dataset)

    def loading(self, options, recipe, dataset):
        if "text" in recipe.image_text:  # a new text tower
            return super().loading(options, recipe, dataset)
        return {"kind": "image_text", **options, "num_classes": 0}

    def around(self, model, config, dataset):
        model = image_text_model(model, config, dataset.texts.preprocessing)
        if dataset.captions("test") is None:  # The finished model is tested as a classifier.
            model.check_projections()
        return model

    def batches(self, batches, model, source, **place):
        from keras_vit.tasks.image_text.samples import pair_batches  # needs TensorFlow

        texts = dataclasses.replace(source.dataset.texts, preprocessing=model.text_preprocessing)
        return pair_batches(batches, texts, source.split, **place)

    def test(self, model, finished, dataset, recipe):
        from keras_vit.evaluation import retrieval  # needs TensorFlow

        captions = dataset.captions("test")
        if captions is None:
            return get_task(recipe.task).test(model, self.classifier(finished, dataset), dataset, recipe)
        return retrieval(finished, dataset.split("test"), captions, recipe.batch_size)

    def classifier(self, finished, dataset):
        """The finished model as a classifier, by the wordings of the test split."""
        wordings = dict(zip(dataset.class_names, dataset.texts.wordings["test"]))
        return finished.vision_transformer(wordings)


def image_text_model(model, config, preprocessing):
    """The `ImageTextModel` of a run, with its tokenizer.

    Args:
        model: The weights' ImageTextModel, or a VisionTransformer that gets a new text tower.
        config: RunConfig.
        preprocessing: The data set's `TextPreprocessing`, or None.
    """
    recipe, options = config.recipe, config.recipe.image_text
    has_texts = image_model(model) is not model
    if has_texts:
        preprocessing = model.text_preprocessing
    text = model.text.get_config() if has_texts else options.get("text", {})
    if config.tokenizer is not None:
        preprocessing = _read_tokenizer(config.tokenizer, text.get("length"))
    if preprocessing is None:
        raise ValueError("the texts need a tokenizer: expected weights with one, or --tokenizer; got none")
    if not has_texts:
        text = {
            "vocabulary_size": preprocessing.vocabulary_size,
            "length": preprocessing.length,
            "dropout_rate": recipe.dropout_rate,
            **text,
            "dtype": model.dtype_policy,
        }
        try:
            return ImageTextModel(model, **{**options, "text": text, "text_preprocessing": preprocessing})
        except TypeError as error:
            raise ValueError(f"wrong arguments in the recipe's image_text: {error}") from None
    for name, value in options.items():
        if value != getattr(model, name, None):
            raise ValueError(f"{config.weights} has another {name} than the recipe's image_text: {value!r}")
    if config.tokenizer is not None and preprocessing.vocabulary_size > text["vocabulary_size"]:
        raise ValueError(
            f"expected a tokenizer of at most {text['vocabulary_size']} tokens, the vocabulary size of "
            f"{config.weights}; got {preprocessing.vocabulary_size}"
        )
    model.text_preprocessing = preprocessing
    return model


def _read_tokenizer(source, length=None):
    """The `TextPreprocessing` of PATH or PATH:FAMILY."""
    from keras_vit.weights.catalogue import resolve
    from keras_vit.weights.tokenizer import read_text_preprocessing, tokenizer_source

    path, family = tokenizer_source(source)
    tokenizer = read_text_preprocessing(resolve(path), family, **({"length": length} if length else {}))
    if tokenizer is None:
        raise ValueError(
            f"expected a tokenizer in {path!r}, whose tokenizer_config.json names its class, or "
            f"{path}:FAMILY with one of {', '.join(FAMILIES)}"
        )
    return tokenizer
