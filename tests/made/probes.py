"""A classifier of the photographs: the trained backbone with a head by logistic regression."""

import io

import numpy as np
from made import trained
from PIL import Image

from keras_vit import from_pretrained
from keras_vit.data.dataset import Dataset
from keras_vit.data.samples import Samples

SIZE = 224


def photographs(train=12, test=20):
    """A `Dataset` of so many crops of each photograph, whose classes are the photographs."""
    splits = {"train": train, "test": test}
    return Dataset("photographs", tuple(trained.PHOTOGRAPHS), {s: _samples(s, n) for s, n in splits.items()})


def classifier(dataset):
    """The trained model with a head that is fitted to the features of the training split."""
    from sklearn.linear_model import LogisticRegression

    options = {"image_size": SIZE, "preprocessing": {"crop_fraction": 1.0}}
    samples = dataset.split("train")
    images = [np.asarray(Image.open(io.BytesIO(content))) for content in samples.images]
    backbone = from_pretrained(trained.weights_folder(), **options)
    features = backbone.predict(backbone.preprocessing(np.stack(images)), batch_size=16, verbose=0)
    fitted = LogisticRegression(max_iter=2000).fit(features, samples.labels)
    model = from_pretrained(trained.weights_folder(), num_classes=len(dataset.class_names), **options)
    model.get_layer("head").set_weights([fitted.coef_.T, fitted.intercept_])
    return model


def _samples(part, count):
    images, labels = trained.crops(part, count, SIZE)
    encoded = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG", compress_level=1)
        encoded.append(file.getvalue())
    return Samples(tuple(encoded), tuple(labels.tolist()), exif=False)
