"""What a student and its teachers compute together, and what is refused."""

import keras
import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import BOUND, assert_close, numpy, randomize
from reference.small import SMALL

import keras_vit
from keras_vit import evaluation, export, save_weights
from keras_vit.layers.dense import Dense
from keras_vit.tasks.distillation.model import DistillationModel, resized_maps
from keras_vit.tasks.distillation.stored_outputs import StoredOutputs
from keras_vit.training import DistillationLoss

BARE = {**SMALL, "num_classes": None, "num_layers": 1}
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), "uint8")


def classifier(seed=1, **options):
    return randomize(keras_vit.VisionTransformer(**{**SMALL, "num_layers": 1, **options}), seed=seed)


def segmenter(seed=1, **options):
    return randomize(keras_vit.ImageSegmenter({**BARE, **options}, 4), seed=seed)


@pytest.mark.slow
def test_teachers_read_their_own_normalization_and_size():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    student, same = classifier(1, dropout_rate=0.5), classifier(2, hidden_size=12)
    shifted = classifier(3, preprocessing={"image_size": 16, "mean": mean, "std": std})
    larger = classifier(4, image_size=32)
    model = DistillationModel(student, [same, shifted, larger])
    assert [*model.preprocessing] == [*model.input] == ["images", "teacher_3_images"]
    inputs = {name: prepare(IMAGES) for name, prepare in model.preprocessing.items()}
    expected = [one(one.preprocessing(IMAGES)) for one in (student, same, shifted, larger)]
    for row, outputs in enumerate(expected):
        assert_close(model(inputs)[:, row], numpy(outputs), BOUND)
    trained = model(inputs, training=True)
    assert np.abs(numpy(trained[:, 0]) - numpy(expected[0])).max() > 1e-3  # dropout
    assert_close(trained[:, 1], numpy(expected[1]))


@pytest.mark.slow
def test_only_the_student_is_trained_and_the_teachers_are_not_in_checkpoints():
    student, teacher = classifier(1), classifier(2, dropout_rate=0.5)
    model = DistillationModel(student, [teacher])
    assert {w.path for w in model.trainable_weights} == {w.path for w in student.trainable_weights}
    before = [numpy(weight) for weight in teacher.weights]
    model.compile("adam", DistillationLoss(), jit_compile=False)
    inputs = student.preprocessing(IMAGES)
    first, last = (model.fit(inputs, np.zeros(3), epochs=4, verbose=0).history["loss"][i] for i in (0, -1))
    assert last < first
    for weight, value in zip(teacher.weights, before):
        np.testing.assert_array_equal(numpy(weight), value)
    stored = {id(weight) for weight in model.weights if getattr(weight, "in_checkpoints", True)}
    assert stored == {id(weight) for weight in student.weights}


@pytest.mark.parametrize("size", [(4, 6), (9, 16), (20, 10)])
def test_maps_are_resized_with_antialiasing(size, rng):
    maps = rng.standard_normal((2, 8, 12, 3)).astype("float32")
    expected = keras.ops.image.resize(maps, size, antialias=True, data_format="channels_last")
    assert_close(numpy(resized_maps(maps, size)), numpy(expected), 1e-5)


@pytest.mark.tensorflow_only("JAX always computes by XLA")
def test_xla_resizes_maps(rng):
    import tensorflow as tf

    maps = rng.standard_normal((2, 8, 12, 3)).astype("float32")
    compiled = tf.function(lambda maps: resized_maps(maps, (4, 6)), jit_compile=True)
    assert_close(numpy(compiled(maps)), numpy(resized_maps(maps, (4, 6))), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("features", [False, True])
def test_a_student_in_16_bits_has_the_outputs_of_one_in_32(features, dtype):
    options = {"num_classes": None, "pooling": "gap"} if features else {}
    teacher, outputs = classifier(2, **options), []
    for policy in ("float32", dtype):
        model = DistillationModel(classifier(1, dtype=policy, **options), [teacher], features)
        randomize(model, scale=0.1)
        outputs.append(model(model.preprocessing(IMAGES)))
        assert keras.backend.standardize_dtype(outputs[-1].dtype) == "float32"
    assert_close(numpy(outputs[1]), numpy(outputs[0]), 0.02)
    assert np.abs(numpy(outputs[1] - outputs[0])).max() > 0
    np.testing.assert_array_equal(*(numpy(one[:, 1]) for one in outputs))  # the teacher's own dtype


def test_both_heads_of_a_student_with_a_distillation_token_are_outputs():
    student, teacher = classifier(1, distillation=True), classifier(2)
    model = DistillationModel(student, [teacher])
    inputs = student.preprocessing(IMAGES)
    outputs = numpy(model(inputs))
    assert outputs.shape == (3, 3, SMALL["num_classes"]) and model.students == 2
    assert_close(outputs[:, :2].mean(1), numpy(student(inputs)))
    assert np.abs(outputs[:, 0] - outputs[:, 1]).max() > 1e-3


def test_stored_outputs_are_an_input_beside_those_of_models():
    student, larger = classifier(1), classifier(2, image_size=32)
    model = DistillationModel(student, [StoredOutputs(SMALL["num_classes"]), larger])
    assert [*model.input] == ["images", "teacher_1_outputs", "teacher_2_images"]
    assert [*model.preprocessing] == ["images", "teacher_2_images"] and not model.head_inputs
    inputs = {name: prepare(IMAGES) for name, prepare in model.preprocessing.items()}
    stored = np.random.default_rng(0).normal(size=(3, SMALL["num_classes"])).astype("float32")
    outputs = numpy(model(inputs | {"teacher_1_outputs": stored}))
    np.testing.assert_array_equal(outputs[:, 1], stored)
    assert_close(outputs[:, 2], numpy(larger(inputs["teacher_2_images"])))
    alone = DistillationModel(student, [StoredOutputs(SMALL["num_classes"])])
    assert alone.preprocessing == student.preprocessing


def test_maps_of_a_teacher_are_resized_to_the_students():
    student, teacher = segmenter(1), segmenter(2, image_size=32)
    model = DistillationModel(student, [teacher])
    outputs = model({name: prepare(IMAGES) for name, prepare in model.preprocessing.items()})
    large = numpy(teacher(teacher.preprocessing(IMAGES)))
    assert outputs.shape == (3, 2, 16, 16, 4)
    assert_close(outputs[:, 1], large.reshape(3, 16, 2, 16, 2, 4).mean((2, 4)), 0.1)  # antialiased


@pytest.mark.parametrize("pooling", some(["token", "gap", "map"], 3))
def test_features_are_a_vector_and_patches_on_the_students_grid(pooling):
    student = randomize(keras_vit.VisionTransformer(**{**BARE, "patch_size": 8, "pooling": "gap"}))
    options = {**BARE, "hidden_size": 12, "num_heads": 2, "patch_size": 4, "pooling": pooling}
    teacher = randomize(keras_vit.VisionTransformer(**options))
    model = DistillationModel(student, [teacher], features=True)
    inputs = student.preprocessing(IMAGES)
    outputs = numpy(model(inputs))
    assert outputs.shape == (3, 2, 1 + 4, 12)
    assert_close(outputs[:, 1, 0], numpy(teacher(inputs)))
    layers = {layer.name: layer for layer in model.layers if isinstance(layer, Dense)}
    assert_close(outputs[:, 0, 0], numpy(layers["vector_projection"](student(inputs))))
    tokens = student.feature_extractor("tokens", grid=True)(inputs)["tokens"]
    projected = numpy(layers["grid_projection"](tokens)).reshape(3, 4, 12)
    assert_close(outputs[:, 0, 1:], projected)
    grid = numpy(teacher.feature_extractor("tokens", grid=True)(inputs)["tokens"])
    resized = keras.ops.image.resize(grid, (2, 2), antialias=True)
    assert_close(outputs[:, 1, 1:], numpy(resized).reshape(3, 4, 12))


def test_only_the_student_is_saved_evaluated_and_exported(tmp_path):
    model = DistillationModel(classifier(), [classifier()])
    for use, words in (
        (model.get_config, "not saved; save its student"),
        (lambda: model.save(tmp_path / "model.keras"), "not saved; save its student"),
        (lambda: save_weights(model, tmp_path / "model.npz", "vit_jax"), "whose `student` can be saved"),
        (lambda: evaluation.evaluate(model, None), "use its student"),
        (lambda: export.export_folder(model, tmp_path / "export"), "expected a model of images to export"),
    ):
        with pytest.raises(ValueError, match=words):
            use()
    assert not [*tmp_path.iterdir()]


def with_queries():
    return keras_vit.ImageSegmenter(BARE, 4, "mask", num_queries=2, query_blocks=1)


FEATURES = {"num_classes": None}
REFUSED = {
    "no teacher": (classifier, [], "expected teachers; got 0"),
    "classes": (classifier, [{"num_classes": 7}], r"of the shape \(5,\), as the student's; got \(7,\)"),
    "stored classes": (classifier, [StoredOutputs(7)], r"of the shape \(5,\), as the student's; got \(7,\)"),
    "stored features": (FEATURES, [StoredOutputs(7)], "expected a teacher with features; got stored outputs"),
    "several features": (FEATURES, [{}] * 2, "expected one teacher; got 2"),
    "features of a head": ({}, [{}], "expected a student without a head"),
    "any size": (classifier, [{"image_size": (None, None)}], "models for one image size; .* reads any"),
    "queries": (with_queries, [{}], "a student whose head has no queries"),
}


@pytest.mark.slow
@by_table("reason", REFUSED)
def test_what_cannot_be_compared_is_refused(reason):
    """A student by its options learns features."""
    student, teachers, words = REFUSED[reason]
    features = isinstance(student, dict)
    student = classifier(**student) if features else student()
    teachers = [classifier(**each) if isinstance(each, dict) else each for each in teachers]
    with pytest.raises(ValueError, match=words):
        DistillationModel(student, teachers, features)
