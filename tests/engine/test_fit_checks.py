import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.sampling import some
from made.tables import by_table
from reference.small import small

from keras_vit import VisionTransformer
from keras_vit.engine.fit_checks import WarnOfNaN
from keras_vit.models import DistributedModel
from keras_vit.training import (
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SquaredError,
    WarmupDecay,
    compile_model,
)

X, Y = np.zeros((4, 2), "float32"), np.arange(4)


def tiny():
    x = keras.Input((2,))
    return DistributedModel(x, keras.layers.Dense(4)(x))


@by_table(
    "loss, remedy",
    [
        ("categorical_crossentropy", "CategoricalCrossentropy"),
        ("BinaryFocalCrossentropy", "BinaryFocalCrossentropy"),
        (keras.losses.sparse_categorical_crossentropy, "SparseCategoricalCrossentropy"),
        (keras.losses.CategoricalFocalCrossentropy(), "CategoricalFocalCrossentropy"),
        ([keras.losses.SparseCategoricalCrossentropy()], "SparseCategoricalCrossentropy"),
    ],
)
def test_a_loss_that_expects_probabilities_causes_a_warning(loss, remedy):
    with pytest.warns(
        UserWarning, match=rf"logits, .* keras\.losses\.{remedy}\(from_logits=True\)"
    ) as caught:
        small(num_layers=1).compile("sgd", loss)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="logits"):
        small(num_layers=1).with_preprocessing().compile("sgd", loss)


@by_table(
    "loss",
    [None, "mse", keras.losses.SparseCategoricalCrossentropy(from_logits=True), SoftmaxCrossEntropy()],
    ids=["none", "mse", "keras", "keras_vit"],
)
def test_other_losses_cause_none(loss):
    small(num_layers=1).compile("sgd", loss)


@pytest.mark.parametrize("labels", [[1, 10], [-1, 3]])
@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy(), keras.losses.SparseCategoricalCrossentropy(True)])
def test_labels_that_are_no_classes_are_refused(loss, labels):
    model = small(num_layers=1)
    model.compile("sgd", loss)
    message = rf"expected labels from 0 to {model.num_classes - 1}, .* from {min(labels)} to {max(labels)}"
    with pytest.raises(ValueError, match=message):
        model.fit(np.zeros((2, *model.image_size, 3), "float32"), np.array(labels), verbose=0)


def test_rows_of_one_class_are_no_indices(eager):
    model = small(num_layers=1, num_classes=1)
    model.compile("sgd", SigmoidCrossEntropy())
    model.fit(np.zeros((2, *model.image_size, 3), "float32"), np.array([[0], [1]]), verbose=0)


@by_table("loss", [SquaredError(), SigmoidCrossEntropy(indices=False)])
def test_weights_of_classes_are_refused_for_labels_without_a_class(loss):
    model = small(num_layers=1)
    model.compile("sgd", loss)
    images, labels = np.zeros((2, *model.image_size, 3), "float32"), np.zeros((2, model.num_classes))
    with pytest.raises(ValueError, match="^class_weight needs a class for each image; got labels with a num"):
        model.fit(images, labels, class_weight={0: 2.0})


def test_the_check_of_the_loss_leaves_keras_its_asynchronous_steps():
    def is_asynchronous(*callbacks):
        return keras.callbacks.CallbackList([*callbacks])._async_train

    assert is_asynchronous(WarnOfNaN()) == is_asynchronous()


def test_a_loss_of_nan_causes_a_warning():
    model = tiny()
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="the loss is NaN by step 1 of this epoch") as caught:
        model.fit(X + np.nan, np.zeros((4, 4), "float32"), batch_size=1, verbose=0)
    assert len(caught) == 1


def test_a_loss_is_read_after_steps_whose_number_doubles_and_at_the_end():
    class Loss:
        read = 0

        def __float__(self):
            self.read += 1
            return 1.0

    callback, loss = WarnOfNaN(), Loss()
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        for batch in range(100):
            callback.on_train_batch_end(batch, {"loss": loss})
    assert loss.read == 2 * 7
    with pytest.warns(UserWarning, match="the loss is NaN at the end of this epoch"):
        callback.on_epoch_end(1, {"loss": float("nan")})


def test_a_model_that_does_not_output_logits_causes_none():
    VisionTransformer(16, 8, 12, 1, 20, 3).compile("sgd", "categorical_crossentropy")
    classifier = small(num_layers=1)
    probabilities = keras.layers.Softmax()(classifier.output)
    DistributedModel(classifier.input, probabilities).compile("sgd", "categorical_crossentropy")


@pytest.mark.parametrize(
    "epochs, effect", some([(5, "the learning rate is about 0"), (2, "not decayed by then")], 2)
)
def test_a_fit_that_ends_far_from_its_schedule_warns_before_the_first_step(epochs, effect):
    model = tiny()
    compile_model(model, epochs=3, steps_per_epoch=2)
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: steps.append(batch))
    expected = rf"total_steps=6, but `fit` ends at step {2 * epochs}: .*{effect}"
    with pytest.raises(UserWarning, match=expected):  # an error here stops the fit before it starts
        model.fit(X, Y, 2, epochs, verbose=0, callbacks=count)
    assert steps == []
    model.is_segment = True
    model.fit(X, Y, 2, epochs, verbose=0)


def test_a_resumed_fit_counts_earlier_steps():
    model = tiny()
    compile_model(model, total_steps=4, warmup_steps=0)
    with pytest.warns(UserWarning, match="`fit` ends at step 2: .*right only if another `fit` follows"):
        model.fit(X, Y, batch_size=2, verbose=0)
    model.fit(X, Y, batch_size=2, initial_epoch=1, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 4


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_with_unknown_steps_the_warning_comes_at_the_end():
    # Keras counts its attempt to read a sixth batch as a step.
    batches = tf.data.Dataset.from_tensors((X, Y)).repeat(5).filter(lambda x, y: True)
    model = tiny()
    compile_model(model, total_steps=2)
    with pytest.warns(UserWarning, match="total_steps=2, but `fit` ends at step [56]: "):
        model.fit(batches, shuffle=False, verbose=0)


def test_early_stopping_and_a_fit_without_a_schedule_cause_no_warning(tmp_path):
    model = tiny()
    compile_model(model, total_steps=10, warmup_steps=0)
    model.fit(X, Y, 4, 10, verbose=0, callbacks=[keras.callbacks.EarlyStopping("loss", min_delta=9)])
    assert int(model.optimizer.iterations) < 5
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").total_steps == 10
    model.compile("sgd", SoftmaxCrossEntropy())
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.ReduceLROnPlateau("loss"),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_a_callback_that_sets_a_scheduled_learning_rate_is_refused(callback):
    model = tiny()
    model.compile(keras.optimizers.SGD(WarmupDecay(0.1, 10)), SoftmaxCrossEntropy())
    with pytest.raises(
        ValueError, match="expected a number as learning_rate for .*; got the schedule WarmupDecay"
    ) as caught:
        model.fit(X, Y, verbose=0, callbacks=[[callback]])
    assert type(callback).__name__ in str(caught.value) and "\n" not in str(caught.value)
    model.compile(keras.optimizers.SGD(0.1), SoftmaxCrossEntropy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model.fit(X, Y, verbose=0, callbacks=callback)


@by_table("shape", [(1, 3, 16, 16), (1, 16, 16, 1), (16, 16, 3), (1, 0, 16, 3), (0, 16, 16, 3)])
def test_arrays_that_are_no_input_are_refused(shape):
    """Keras does not see their shapes after inputs of several sizes."""
    model = small(image_size=(None, None))
    model.compile("sgd", SoftmaxCrossEntropy())
    wrong, labels = np.zeros(shape, "float32"), np.zeros(shape[0], int)
    for call in (model.predict, lambda x: model.evaluate(x, labels), lambda x: model.fit(x, labels)):
        with pytest.raises(
            ValueError, match=r"expected an array of the shape \(any, any, any, 3\), not empty; got"
        ):
            call(wrong)
