"""What is published, and what the real tensorflow_hub and tf_keras make of it, fetched from a web server."""

import json
import os
import re
import subprocess
import sys
import tarfile

import keras
import numpy as np
import pytest
from made.servers import Server, file, serving
from reference.comparing import assert_close
from reference.small import one_block, penalised

pytestmark = pytest.mark.tensorflow_only("SavedModels")
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    from keras_vit.export.description import describe
    from keras_vit.export.hub import Facts, Measurement, check_names, export_hub
    from keras_vit.export.hub_usage import fine_tuning, usage
    from keras_vit.export.layer import SavedModelLayer
    from keras_vit.export.saved_model import export_saved_model

NAMES = {"name": "vit_s16.digits", "publisher": "me-2"}
FACTS = {
    "licence": "Apache-2.0",
    "trained_on": "digits",
    "source": "from scratch",
    "url": "https://example.org/vit/1.tar.gz",
}


def pixels(count=3):
    return np.random.default_rng(0).uniform(size=(count, 16, 16, 3)).astype("float32")


@pytest.fixture(scope="module")
def model():
    """A model with dropout and a weight penalty."""
    return penalised(dropout_rate=0.5)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    return export_saved_model(model, tmp_path_factory.mktemp("export") / "saved_model" / "3")


# What is written ---------------------------------------------------------------------------------


def test_archive_page_and_metadata_are_written(model, saved, tmp_path):
    facts = Facts(**FACTS, accuracy=(Measurement(0.9, "digits", "test", 355),))
    files = export_hub(saved, tmp_path / "hub", **NAMES, facts=facts)
    assert sorted(tmp_path.rglob("*"))[1:] == sorted(files.values())
    with tarfile.open(files["archive"]) as tar:
        assert "saved_model.pb" in tar.getnames() and "fingerprint.pb" not in tar.getnames()
    page = files["page"].read_text()
    assert page.startswith("# Module me-2/vit_s16.digits/3\n")
    assert f"| Parameters | {model.count_params():,} |" in page and "355 images | 0.9 |" in page
    assert json.loads(files["model_metadata"].read_text()) == {
        "ownerSlug": "me-2",
        "title": "vit_s16.digits",
        "slug": "vit-s16-digits",
        "subtitle": page.splitlines()[1],
        "isPrivate": True,
        "description": page[page.index("## Overview") :],
        "provenanceSources": "from scratch",
    }
    instance = json.loads(files["instance_metadata"].read_text())
    text = instance.pop("usage")
    assert 'hub.load("${PATH}")' in text and "trainable=True" in text and "example.org" not in text
    assert instance == {
        "ownerSlug": "me-2",
        "modelSlug": "vit-s16-digits",
        "instanceSlug": "classification",
        "framework": "tensorFlow2",
        "overview": page.splitlines()[1],
        "licenseName": "Apache 2.0",
        "fineTunable": True,
        "trainingData": ["digits"],
        "modelInstanceType": "Unspecified",
    }


def test_a_frozen_model_is_not_published_as_fine_tunable(tmp_path):
    model = one_block()
    model.trainable = False
    files = export_hub(export_saved_model(model, tmp_path / "1"), tmp_path / "hub", **NAMES)
    instance = json.loads(files["instance_metadata"].read_text())
    assert instance["fineTunable"] is False
    assert "hub.load" in instance["usage"] and not instance["usage"].endswith("\n\n")
    described = files["page"].read_text() + files["model_metadata"].read_text()
    assert "<!-- fine-tunable: false -->" in described
    assert "trainable=True" not in described + instance["usage"]


def test_what_is_not_known_is_not_in_the_metadata(saved, tmp_path):
    files = export_hub(saved, tmp_path / "hub", **NAMES)
    known = json.loads(files["model_metadata"].read_text()) | json.loads(
        files["instance_metadata"].read_text()
    )
    assert not {"licenseName", "provenanceSources"} & {*known} and known["trainingData"] == []
    assert "None" not in "".join(path.read_text() for path in [*files.values()][1:])
    files = export_hub(saved, tmp_path / "other", **NAMES, facts=Facts(licence="my own"))
    assert "licenseName" not in json.loads(files["instance_metadata"].read_text())
    assert "<!-- license: custom -->" in files["page"].read_text()


def test_the_same_model_is_published_the_same(saved, tmp_path):
    first, again = (export_hub(saved, tmp_path / name, **NAMES) for name in "ab")
    for kind, path in first.items():
        assert path.read_bytes() == again[kind].read_bytes(), kind


def test_the_version_is_the_folders_or_given(saved, model, tmp_path):
    plain = export_saved_model(model, tmp_path / "plain")
    for source, version, expected in ((saved, None, 3), (plain, None, 1), (saved, 12, 12)):
        page = export_hub(source, tmp_path / str(expected), **NAMES, version=version)["page"].read_text()
        assert page.startswith(f"# Module me-2/vit_s16.digits/{expected}\n")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"name": "vit s16"}, """name must consist of letters, digits, "_", "." and "-" .*; got 'vit s16'"""),
        ({"name": "../vit"}, "name must consist of .*; got '../vit'"),
        ({"name": ""}, "name must consist of .*; got ''"),
        ({"name": ".."}, r"name must consist of .*; got '\.\.'"),
        ({"publisher": "Me"}, "publisher must consist of .*; got 'Me'"),
        ({"publisher": "me/you"}, "publisher must consist of .*; got 'me/you'"),
        ({"publisher": "größe"}, "publisher must consist of .*; got 'größe'"),
        ({"name": None}, "name must consist of .*; got None"),
        ({"version": "1a"}, "version must consist of .*; got '1a'"),
        ({"version": -1}, "version must consist of .*; got '-1'"),
    ],
)
def test_names_that_tf_hub_does_not_take_are_refused(names, message, saved, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_hub(saved, tmp_path / "hub", **{**NAMES, **names})
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ValueError, match=message):
        check_names(**{**NAMES, "version": 1, **names})


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"url": "example.org/vit.tar.gz"}, r"url must be the address of a \.tar\.gz; got 'example"),
        ({"url": "https://example.org/vit"}, r"url must be the address of a \.tar\.gz"),
        ({"url": 'https://example.org/"+x+".tar.gz'}, "url must be"),
        ({"licence": "MIT\n# Module"}, "licence must be one line of text"),
        ({"trained_on": " "}, "trained_on must be one line of text; got ' '"),
        ({"source": ""}, "source must be one line"),
    ],
)
def test_facts_that_would_break_the_page_are_refused(fact, message):
    with pytest.raises(ValueError, match=message):
        Facts(**fact)


def test_nothing_is_left_of_what_cannot_be_published(saved, tmp_path):
    other = tmp_path / "other"
    tf.saved_model.save(tf.train.Checkpoint(), str(other))
    with pytest.raises(ValueError, match="was not exported by keras_vit"):
        export_hub(other, tmp_path / "hub", **NAMES)
    (tmp_path / "hub").mkdir()
    with pytest.raises(ValueError, match="hub' exists; '.*hub-2' is free"):
        export_hub(saved, tmp_path / "hub", **NAMES)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "hub", other]


# What the real libraries make of it ---------------------------------------------------------------

# In a process of its own: tensorflow_hub warns of pkg_resources on import and brings Keras 2 along.
LIBRARIES = """
import hashlib, json, os, sys
import keras, numpy as np, tensorflow as tf, tensorflow_hub as hub, tf_keras

url, folder = sys.argv[1:]
x = np.random.default_rng(0).uniform(size=(3, 16, 16, 3)).astype("float32")
found = {}

loaded = hub.load(url)
found["load"] = loaded(x).numpy().tolist()
found["training"] = float(np.abs(loaded(x, training=True) - loaded(x)).max())
found["cache"] = os.path.isdir(
    os.path.join(os.environ["TFHUB_CACHE_DIR"], hashlib.sha1(url.encode()).hexdigest(), "variables")
)

for way, opened in (
    ("hub.load", loaded),
    ("tf.saved_model.load", tf.saved_model.load(folder)),
    ("tf_keras.models.load_model", tf_keras.models.load_model(folder)),
):
    found[way] = {
        "outputs": opened(x).numpy().tolist(),
        "variables": [len(opened.variables), len(opened.trainable_variables)],
        "penalties": [float(penalty()) for penalty in opened.regularization_losses],
        "is a model": isinstance(opened, (keras.Model, tf_keras.Model)),
    }

layer = hub.KerasLayer(url, trainable=True)
model = tf_keras.Sequential([tf_keras.Input((16, 16, 3)), layer, tf_keras.layers.Dense(2)])
found["layer"] = layer(x).numpy().tolist()
found["penalties"] = [float(loss) for loss in layer.losses]
found["layer in training"] = float(np.abs(layer(x, training=True) - layer(x)).max())
before = [w.numpy() for w in layer.trainable_weights]
model.compile(tf_keras.optimizers.SGD(0.1, clipnorm=1.0), "mse")
history = model.fit(x, np.ones((3, 2)), epochs=10, verbose=0)
found["losses"] = history.history["loss"]
found["weights"] = len(layer.weights)
found["unchanged"] = [
    w.name for w, old in zip(layer.trainable_weights, before) if np.array_equal(w.numpy(), old)
]
found["changed"] = len(before) - len(found["unchanged"])
found["evaluated"] = model.evaluate(x, model.predict(x, verbose=0), verbose=0)
found["penalty then"] = float(layer.losses[0])

frozen = hub.KerasLayer(url, signature="serving_default", output_key="probabilities")
found["probabilities"] = frozen(x).numpy().tolist()
found["frozen"] = len(frozen.trainable_weights)
logits = hub.KerasLayer(folder, signature="serving_default", output_key="logits")
found["logits"] = logits(x).numpy().tolist()
unpacked = hub.KerasLayer(folder)
found["folder"] = unpacked(x).numpy().tolist()

def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)

found["in keras 3"] = refused(lambda: keras.Sequential([keras.Input((16, 16, 3)), unpacked]))
found["keras.models.load_model"] = refused(lambda: keras.models.load_model(folder))
json.dump(found, open(os.environ["FOUND"], "w"))
"""

# With TF_USE_LEGACY_KERAS=1, `tf.keras` is Keras 2, of which `hub.KerasLayer` is a layer.
LEGACY = """
import json, os, sys
import numpy as np, tensorflow as tf, tensorflow_hub as hub

x = np.random.default_rng(0).uniform(size=(3, 16, 16, 3)).astype("float32")
layer = hub.KerasLayer(sys.argv[1], trainable=True)
model = tf.keras.Sequential([tf.keras.Input((16, 16, 3)), layer])
found = {"keras": tf.keras.Sequential.__module__, "outputs": model(x).numpy().tolist()}
model.compile(tf.keras.optimizers.SGD(0.01, clipnorm=1.0), "mse")
before = [w.numpy() for w in layer.trainable_weights]
model.fit(x, np.ones((3, 5)), verbose=0)
found["unchanged"] = [
    w.name for w, old in zip(layer.trainable_weights, before) if np.array_equal(w.numpy(), old)
]
found["weights"] = len(before)
json.dump(found, open(os.environ["FOUND"], "w"))
"""


def run(program, folder, *arguments, **settings):
    """A program in a process of its own, in a folder, with caches there; what it wrote to $FOUND."""
    folder.mkdir(exist_ok=True)
    quiet = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    ours = {
        "TFHUB_CACHE_DIR": str(folder / "tfhub"),
        "KERAS_VIT_CACHE": str(folder / "cache"),
        "FOUND": str(folder / "found.json"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=folder,
        env=quiet | ours | settings,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    path = folder / "found.json"
    return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture(scope="module")
def found(saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp("libraries")
    archive = export_hub(saved, folder / "hub", **NAMES)["archive"].read_bytes()
    with serving(Server()) as server:
        server.answers["/vit/3.tar.gz?tf-hub-format=compressed"] = file(archive)
        result = run(LIBRARIES, folder, f"{server.url}/vit/3.tar.gz", saved)
        assert [path for _, path, _ in server.seen] == ["/vit/3.tar.gz?tf-hub-format=compressed"]
    return result


@pytest.mark.parametrize("way", ["hub.load", "tf.saved_model.load", "tf_keras.models.load_model"])
def test_what_is_loaded_is_a_reusable_object(way, found, model):
    of_it = found[way]
    assert_close(np.array(of_it["outputs"], "float32"), model(model.preprocessing(pixels())), 1e-5)
    assert of_it["variables"] == [len(model.variables), len(model.trainable_variables)]
    assert of_it["penalties"] == pytest.approx([penalty_of(model)], rel=1e-5)
    assert not of_it["is a model"]


def test_keras_3_takes_neither_hubs_layer_nor_the_folder(found, saved):
    """For which there is `SavedModelLayer`."""
    assert "Only instances of `keras.Layer` can be added" in found["in keras 3"]
    assert "File format not supported" in found["keras.models.load_model"]
    outer = keras.Sequential([keras.Input((16, 16, 3)), SavedModelLayer(saved)])
    assert outer(pixels()).shape == (3, 5)


def test_keras_2_as_tf_keras_fine_tunes_it(saved, model, tmp_path):
    found = run(LEGACY, tmp_path / "legacy", saved, TF_USE_LEGACY_KERAS="1")
    assert found["keras"].startswith("tf_keras.")
    assert_close(np.array(found["outputs"], "float32"), model(model.preprocessing(pixels())), 1e-5)
    assert found["weights"] == len(model.trainable_variables)
    assert all(name.endswith("key/bias:0") for name in found["unchanged"])


def penalty_of(model):
    return 0.1 * float(np.sum(model.get_layer("head").kernel.numpy() ** 2))


def test_hub_load_fetches_it_from_a_web_server(found, model):
    expected = model(model.preprocessing(pixels()))
    assert_close(np.array(found["load"], "float32"), expected, 1e-5)
    assert found["training"] > 0.1 and found["cache"]


def test_keras_layer_fine_tunes_it(found, model):
    assert_close(np.array(found["layer"], "float32"), model(model.preprocessing(pixels())), 1e-5)
    assert found["layer in training"] > 0.1
    # Whatever is added to all keys alike, the softmax takes out again: that gradient is rounding alone.
    assert all(name.endswith("key/bias:0") for name in found["unchanged"])
    assert found["changed"] + len(found["unchanged"]) == len(model.trainable_variables)
    assert found["weights"] == len(model.variables)
    assert found["penalties"] == pytest.approx([penalty_of(model)], rel=1e-5)
    assert found["evaluated"] == pytest.approx(found["penalty then"], rel=1e-4)
    assert np.mean(found["losses"][-3:]) < found["losses"][0]


def test_keras_layer_runs_a_signature_frozen(found, model):
    expected = keras.ops.softmax(model(model.preprocessing(pixels())))
    assert_close(np.array(found["probabilities"], "float32"), expected, 1e-5)
    assert_close(np.array(found["logits"], "float32"), model(model.preprocessing(pixels())), 1e-5)
    assert found["frozen"] == 0
    assert_close(np.array(found["folder"], "float32"), model(model.preprocessing(pixels())), 1e-5)


# The programs on the page --------------------------------------------------------------------------

RUN_ALL = """
import sys
for path in sys.argv[1:]:
    program = open(path).read()
    print(path, program, file=sys.stderr)
    names = {}
    exec(program, names)
    if "layer = " in program:
        assert names["model"].output_shape[0] is None
"""


def snippets(page):
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def write_snippets(folder, page):
    programs = snippets(page)
    assert len(programs) == 5, programs
    for number, program in enumerate(programs):
        (folder / f"{number}.py").write_text(program)
    return [folder / f"{number}.py" for number in range(5)]


UNUSUAL = {
    "any-size": {"image_size": (None, None), "patch_size": 56, "position_grid": (2, 2), "num_classes": None},
    "row-a-patch": {"pooling": None},
}


def test_every_program_on_the_pages_runs(saved, tmp_path):
    """With an address, and of a folder into which the reader has unpacked the archive."""
    with serving(Server()) as server:
        facts = Facts(url=f"{server.url}/vit/3.tar.gz")
        files = export_hub(saved, tmp_path / "hub", **NAMES, facts=facts)
        archive = file(files["archive"].read_bytes())
        server.answers["/vit/3.tar.gz"] = server.answers["/vit/3.tar.gz?tf-hub-format=compressed"] = archive
        programs = write_snippets(tmp_path / "hub", files["page"].read_text())
        for name in UNUSUAL if "FULL" in os.environ else ["any-size"]:
            unpacked = export_saved_model(one_block(**UNUSUAL[name]), tmp_path / name)
            page = export_hub(unpacked, tmp_path / f"{name}-hub", **{**NAMES, "name": name})[
                "page"
            ].read_text()
            assert f"`{name}` is the folder with what is in the archive." in page
            programs += write_snippets(tmp_path / f"{name}-hub", page)
        run(RUN_ALL, tmp_path, *programs)
        asked = {path for _, path, _ in server.seen}
    assert {"/vit/3.tar.gz", "/vit/3.tar.gz?tf-hub-format=compressed"} <= asked


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, (16, 16)),
        ({"image_size": (None, None), "position_grid": (2, 2)}, (16, 16)),
        ({"image_size": (None, None), "position_grid": (2, 2), "patch_size": (24, 300)}, (48, 600)),
        ({"image_size": (16, 24)}, (16, 24)),
    ],
)
def test_the_examples_images_are_ones_that_the_model_takes(options, size):
    description = describe(one_block(**options))
    assert f"tf.zeros((1, {size[0]}, {size[1]}, 3))" in usage(description, "vit")
    assert f"np.zeros((8, {size[0]}, {size[1]}, 3)" in fine_tuning(description, "vit", 1)
