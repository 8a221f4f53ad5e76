import shutil
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.devices import devices
from made.exports import pixels
from made.servers import Server, file, serving
from reference.comparing import assert_close
from reference.small import one_block, penalized, run_live

from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.saved_model_layer import SavedModelLayer
from keras_vit.export.tar_archive import make_archive


@pytest.fixture(scope="module")
def layer(saved_model):
    """A trainable layer; tests leave its variables as they are."""
    return SavedModelLayer(saved_model, trainable=True)


class Foreign(tf.train.Checkpoint):
    """An object to save, whose class may define `__call__`."""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Another publisher's SavedModel: no `training`, two inputs, two outputs, a counter."""
    made = Foreign()
    scale, calls = tf.Variable(2.0), tf.Variable(0, trainable=False)
    made.variables, made.trainable_variables = [scale, calls], [scale]

    def call(inputs):
        calls.assign_add(1)
        return {"sum": scale * (inputs["a"] + inputs["b"]), "difference": inputs["a"] - inputs["b"]}

    spec = tf.TensorSpec((None, 2), tf.float32)
    made.__call__ = tf.function(call, input_signature=[{"a": spec, "b": spec}])
    made.one = tf.function(lambda a: {"double": 2 * a}, input_signature=[tf.TensorSpec((None, 2), name="a")])
    made.two = tf.function(lambda a, b: {"sum": a + b}, input_signature=[spec, spec])
    path = tmp_path_factory.mktemp("foreign")
    tf.saved_model.save(made, str(path), signatures={"one": made.one, "two": made.two})
    return path


# What it computes --------------------------------------------------------------------------------


def test_it_computes_what_the_model_does(model, layer, saved_model):
    expected = run_live(model, pixels(7))
    assert_close(layer(pixels(7)), expected, 1e-5)
    assert layer(pixels(0)).shape == layer(keras.Input((16, 16, 3), 0)).shape == (0, 10)
    assert layer(keras.Input((16, 16, 3))).shape == (None, 10)
    outputs = SavedModelLayer(saved_model, signature="serving_default")(pixels(7))
    assert {*outputs} == {"logits", "probabilities"}
    assert_close(outputs["logits"], expected, 1e-5)


def test_it_runs_in_training_mode_only_where_it_is_trained(model, layer):
    expected = run_live(model, pixels())
    assert np.abs(layer(pixels(), training=True) - expected).max() > 0.1
    assert_close(layer(pixels(), training=False), expected, 1e-5)
    layer.trainable = False
    assert_close(layer(pixels(), training=True), expected, 1e-5)
    layer.trainable = True
    assert np.abs(layer(pixels(), training=True) - expected).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16", "float64"])
def test_it_computes_in_its_own_types_under_every_policy(policy, model, saved_model):
    layer = SavedModelLayer(saved_model, dtype=policy, trainable=True)
    for images in (pixels(), pixels().astype("float64"), keras.ops.cast(pixels(), layer.compute_dtype)):
        outputs = layer(images)
        assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    assert {v.dtype for v in layer.trainable_variables} == {"float32"}
    assert_close(keras.ops.cast(outputs, "float32"), run_live(model, pixels()), 2e-2)


# Its variables -----------------------------------------------------------------------------------


def test_its_weights_are_the_saved_models_own(model, layer, loaded):
    assert len(layer.weights) == len(model.variables)
    assert len({weight.name for weight in layer.trainable_variables}) == len(model.trainable_variables)
    for weight, first in zip(layer.trainable_variables, loaded.trainable_variables, strict=True):
        np.testing.assert_array_equal(weight.numpy(), first)
    head, before = layer.trainable_variables[-1], layer(pixels())
    head.assign(head.value + 1)  # not a copy
    assert_close(layer(pixels()), before + 1, 1e-5)
    head.assign(head.value - 1)


def test_a_frozen_layer_has_no_trained_variables_and_no_penalties(saved_model):
    layer = SavedModelLayer(saved_model)
    assert layer.trainable_variables == [] and layer.losses == [] and len(layer.weights) > 0
    assert not any(variable.trainable for variable in layer.weights)


def test_its_penalties_are_counted_once_and_while_it_is_trained(model, layer):
    expected = 0.1 * float(np.sum(model.get_layer("head").kernel.numpy() ** 2))
    inputs = keras.Input((16, 16, 3))
    outer = keras.Model(inputs, layer(inputs) + layer(1 - inputs))  # called twice
    outer(pixels())
    assert sum(float(loss) for loss in outer.losses) == pytest.approx(expected)
    layer.trainable = False
    assert outer.losses == []
    layer.trainable = True


def outer_of(handle, **options):
    """A model of the layer and a dense one."""
    inputs = keras.Input((16, 16, 3))
    return keras.Model(inputs, keras.layers.Dense(2)(SavedModelLayer(handle, name="vit", **options)(inputs)))


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """A function that saves a model and loads it in another folder, where only its file is left."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "here" / "cache"))

    def move(outer):
        outer.save(tmp_path / "outer.keras")
        (tmp_path / "there").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "there")
        monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "there" / "cache"))
        shutil.rmtree(tmp_path / "here", ignore_errors=True)
        return keras.saving.load_model(tmp_path / "outer.keras", safe_mode=False)

    return move


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vit.tar.gz", "export", "run/export", "URL"])
def test_a_keras_file_holds_the_saved_model_and_what_was_trained(kind, saved_model, moved):
    if kind.endswith("export"):
        shutil.copytree(saved_model, f"{kind}/saved_model/1")
        outer = outer_of(kind.split("/")[0], trainable=True)
    elif kind == "URL":
        with serving(Server()) as server:
            archive = make_archive(saved_model, "vit.tar.gz").read_bytes()
            server.answers["/vit.tar.gz"] = file(archive)
            outer = outer_of(f"{server.url}/vit.tar.gz", trainable=True, trust=True)
    else:
        outer = outer_of(make_archive(saved_model, kind), trainable=True)
    outer.compile("sgd", "mse")
    outer.fit(pixels(), np.ones((3, 2)), verbose=0)
    outer.save("outer.keras")
    with pytest.raises(ValueError, match="^.*runs the SavedModel .*, which is a program.*safe_mode=False.*$"):
        keras.saving.load_model("outer.keras")
    expected, config = outer(pixels()), outer.get_layer("vit").get_config()
    loaded = moved(outer)
    assert loaded.get_layer("vit").get_config() == config
    np.testing.assert_array_equal(loaded(pixels()), expected)
    assert len(loaded.trainable_variables) == len(outer.trainable_variables)
    assert len(loaded.losses) == 1  # the weight penalty


def test_a_keras_file_holds_the_weights_once(saved_model, tmp_path):
    outer_of(saved_model).save(tmp_path / "outer.keras")
    program = (saved_model / "saved_model.pb").stat().st_size
    with zipfile.ZipFile(tmp_path / "outer.keras") as archive:
        config = archive.getinfo("config.json").file_size
    assert 1000 < config < program / 3


def test_tables_and_unlisted_variables_keep_their_values(moved):
    made = Foreign()
    made.hidden = tf.Variable([2.0, 3.0])
    made.variables = [tf.Variable(4.0)]
    made.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    made.table.insert(np.array([0, 1]), np.array([5.0, 6.0], "float32"))

    def call(x):
        return x * made.hidden * made.variables[0] + made.table.lookup(tf.range(2, dtype="int64"))

    made.__call__ = tf.function(call, input_signature=[tf.TensorSpec((None, 2))])
    tf.saved_model.save(made, "1")
    inputs = keras.Input((2,))
    outer = keras.Model(inputs, SavedModelLayer("1")(inputs))
    np.testing.assert_array_equal(moved(outer)(np.ones((1, 2))), [[13.0, 18.0]])


@pytest.mark.slow
def test_its_config_is_its_arguments(saved_model):
    options = {"signature": "serving_default", "output": "logits", "name": "vit", "dtype": "mixed_float16"}
    layer = SavedModelLayer(saved_model, **options)
    config = layer.get_config()
    for name in ("signature", "output", "name"):
        assert config[name] == options[name]
    assert (config["handle"], config["trainable"]) == (str(saved_model), False)
    again = SavedModelLayer.from_config(config, safe_mode=False)
    assert again.get_config() == config and again.compute_dtype == "float16"
    np.testing.assert_array_equal(again(pixels()), layer(pixels()))
    assert keras.saving.get_registered_name(SavedModelLayer) == "keras_vit>SavedModelLayer"


@pytest.mark.slow
def test_it_is_fine_tuned_as_the_live_model_is_and_on_replicas(tmp_path):
    model = penalized()
    saved_model = export_saved_model(model, tmp_path / "1", warmup=())
    images, labels = pixels(8), np.arange(8) % 5

    def fit(make, replicas=0):
        with devices(replicas).scope():
            inputs = keras.Input((16, 16, 3))
            outer = keras.Model(inputs, make()(inputs))
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            outer.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        batches = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8).repeat()
        return outer.fit(batches, steps_per_epoch=1, epochs=5, verbose=0, shuffle=False).history["loss"]

    losses = fit(lambda: SavedModelLayer(saved_model, trainable=True))
    replicated = fit(lambda: SavedModelLayer(saved_model, trainable=True), 2)
    live = fit(lambda: lambda images: model(model.preprocessing.normalize(images * 255.0)))
    np.testing.assert_allclose(losses, live, rtol=1e-3)
    np.testing.assert_allclose(replicated, live, rtol=1e-3)
    assert losses[-1] < losses[0]


# Other publishers' -------------------------------------------------------------------------------


def test_it_takes_what_the_saved_model_takes(foreign):
    layer = SavedModelLayer(foreign, trainable=True)
    a, b = np.ones((3, 2), "float32"), np.full((3, 2), 0.5)
    outputs = layer({"a": a, "b": b})
    np.testing.assert_array_equal(outputs["sum"], np.full((3, 2), 3.0))
    assert [v.shape for v in layer.trainable_variables] == [()] and len(layer.weights) == 2
    assert int(layer.non_trainable_variables[0].numpy()) == 1
    np.testing.assert_array_equal(SavedModelLayer(foreign, output="difference")({"a": a, "b": b}), a - b)


def test_it_takes_signatures_of_one_and_of_several_inputs(foreign):
    a, b = np.ones((3, 2), "float32"), np.full((3, 2), 0.5, "float32")
    np.testing.assert_array_equal(SavedModelLayer(foreign, signature="one")(a), 2 * a)
    np.testing.assert_array_equal(SavedModelLayer(foreign, signature="one")({"a": a}), 2 * a)
    inputs = {name: keras.Input((2,), name=name) for name in "ab"}
    outer = keras.Model(inputs, SavedModelLayer(foreign, signature="two")(inputs))
    np.testing.assert_array_equal(outer({"a": a, "b": b}), a + b)


def saved(path, call):
    """A SavedModel that is called with a tf.function."""
    made = Foreign()
    made.__call__ = call
    tf.saved_model.save(made, str(path))
    return path


def test_it_takes_inputs_of_unknown_rank_and_of_several_shapes(tmp_path):
    anything = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec(None)])
    layer = SavedModelLayer(saved(tmp_path / "1", anything))
    for shape in ((3,), (3, 2), (2, 2, 2)):
        np.testing.assert_array_equal(layer(np.ones(shape)), np.full(shape, 2.0))
    by = tf.function(lambda x, factor=3.0: factor * x)
    for width in (2, 4):
        by.get_concrete_function(tf.TensorSpec((None, width)))
    layer = SavedModelLayer(saved(tmp_path / "2", by))
    for width in (2, 4):
        np.testing.assert_array_equal(layer(np.ones((1, width), "float32")), np.full((1, width), 3.0))


@pytest.mark.parametrize(
    ("call", "specs", "message"),
    [
        (lambda x: x, None, r"cannot be called with one input: it takes \(x\)"),
        (lambda: 1.0, {}, r"with one input: it takes \(\)"),
        (lambda a, b: a + b, {"a": (2,), "b": (2,)}, r"with one input: it takes \(a, b\)"),
    ],
)
def test_what_cannot_be_called_with_one_input_is_refused(call, specs, message, tmp_path):
    function = tf.function(call)
    if specs is not None:
        function.get_concrete_function(**{name: tf.TensorSpec(shape) for name, shape in specs.items()})
    with pytest.raises(ValueError, match=f"^.*{message}.*$"):  # in one line
        SavedModelLayer(saved(tmp_path / "1", function))


def test_a_signatures_inputs_are_its_own(foreign):
    a = np.ones((3, 2), "float32")
    for inputs, got in ((a, "EagerTensor"), ({"a": a}, r"\['a'\]")):
        with pytest.raises(ValueError, match=rf"'two' takes a dict of \['a', 'b'\]; got {got}"):
            SavedModelLayer(foreign, signature="two")(inputs)


@pytest.mark.slow
def test_what_has_nothing_to_train_is_not_to_be_trained(tmp_path):
    model = one_block()
    model.trainable = False
    saved_model = export_saved_model(model, tmp_path / "1", warmup=())
    with pytest.raises(ValueError, match="/1' has no trainable variables; drop trainable=True"):
        SavedModelLayer(saved_model, trainable=True)
    outer = outer_of(saved_model)
    outer.trainable = False
    outer.trainable = True  # as Keras sets it, on every layer
    outer.save(tmp_path / "outer.keras")
    loaded = keras.saving.load_model(tmp_path / "outer.keras", safe_mode=False)
    np.testing.assert_array_equal(loaded(pixels()), outer(pixels()))


def test_what_does_not_fit_is_refused(saved_model, foreign, layer):
    with pytest.raises(ValueError, match=r"has no signature 'x'; it has \['one', 'two'\]"):
        SavedModelLayer(foreign, signature="x")
    with pytest.raises(ValueError, match="a signature cannot be trained; drop signature='one'"):
        SavedModelLayer(foreign, signature="one", trainable=True)
    with pytest.raises(ValueError, match=r"has no output 'x'; it has \['difference', 'sum'\]"):
        SavedModelLayer(foreign, output="x")({"a": np.ones((1, 2)), "b": np.ones((1, 2))})
    with pytest.raises(ValueError, match=r"has no output 'logits'; it has \[\]"):
        SavedModelLayer(saved_model, output="logits")(pixels())
    with pytest.raises(ValueError, match=r"expected shape=\(None, 16, 16, 3\), found shape=\(3, 8, 16, 3\)"):
        layer(pixels()[:, :8])
    with pytest.raises(ValueError, match="the SavedModel takes float32; got uint8"):
        layer((255 * pixels()).astype("uint8"))
