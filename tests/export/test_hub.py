import json
import os
import re
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from made.exports import pixels
from made.servers import Server, file, serving
from reference.comparing import assert_close
from reference.small import one_block, run_live

from keras_vit.export.hub import Facts, Measurement, export_hub
from keras_vit.export.saved_model import export_saved_model

NAMES = {"name": "vit_s16.digits", "publisher": "me-2"}


def test_archive_card_and_metadata_are_written(model, saved_model, tmp_path):
    accuracy = (Measurement(0.9, "digits", "test", 355),)
    facts = Facts("Apache-2.0", "digits", accuracy, "from scratch", "https://example.org/vit/1.tar.gz")
    files = export_hub(saved_model, tmp_path / "hub", **NAMES, version=3, facts=facts)
    assert sorted(tmp_path.rglob("*"))[1:] == sorted(files.values())
    with tarfile.open(files["archive"]) as tar:
        assert "saved_model.pb" in tar.getnames()
    title, _, *card = files["page"].read_text().splitlines(keepends=True)
    assert files["page"].name == "vit_s16.digits.md" and title == "# me-2/vit_s16.digits, version 3\n"
    assert f"| Parameters | {model.count_params():,} |\n" in card
    summary = card[0].strip()
    assert json.loads(files["model_metadata"].read_text()) == {
        "ownerSlug": "me-2",
        "title": "vit_s16.digits",
        "slug": "vit-s16-digits",
        "subtitle": summary,
        "isPrivate": True,
        "description": "".join(card),
        "provenanceSources": "from scratch",
    }
    instance = json.loads(files["instance_metadata"].read_text())
    programs = instance.pop("usage")
    assert 'hub.load("${PATH}")' in programs and "trainable=True" in programs
    assert "example.org" not in programs
    assert instance == {
        "ownerSlug": "me-2",
        "modelSlug": "vit-s16-digits",
        "instanceSlug": "classification",
        "framework": "tensorFlow2",
        "overview": summary,
        "licenseName": "Apache 2.0",
        "fineTunable": True,
        "trainingData": ["digits"],
        "modelInstanceType": "Unspecified",
    }


def test_unknown_facts_are_not_in_the_metadata(saved_model, tmp_path):
    files = export_hub(saved_model, tmp_path / "hub", **NAMES)
    model, instance = (json.loads(files[f"{name}_metadata"].read_text()) for name in ("model", "instance"))
    assert not {"licenseName", "provenanceSources"} & {*model, *instance} and instance["trainingData"] == []
    assert "None" not in "".join(path.read_text() for path in [*files.values()][1:])
    files = export_hub(saved_model, tmp_path / "other", **NAMES, facts=Facts(license="my own"))
    assert "licenseName" not in json.loads(files["instance_metadata"].read_text())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"name": "vit s16"}, """name must consist of letters, digits, "_", "." and "-" .*; got 'vit s16'"""),
        ({"name": ".."}, r"name must consist of .*; got '\.\.'"),
        ({"publisher": "größe"}, "publisher must consist of .*; got 'größe'"),
        ({"version": -1}, "version must consist of .*; got '-1'"),
    ],
)
def test_other_characters_in_names_are_refused(names, message, saved_model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_hub(saved_model, tmp_path / "hub", **{**NAMES, **names})
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"url": "example.org/vit.tar.gz"}, r"url must be the URL of a \.tar\.gz; got 'example"),
        ({"url": 'https://example.org/"+x+".tar.gz'}, "url must be"),
        ({"license": "MIT\n# Module"}, "license must be one line of text"),
        ({"trained_on": " "}, "trained_on must be one line of text; got ' '"),
        ({"source": ""}, "source must be one line"),
    ],
)
def test_facts_that_would_break_the_card_are_refused(fact, message):
    with pytest.raises(ValueError, match=message):
        Facts(**fact)


# With tensorflow_hub and tf_keras ------------------------------------------------------------------

# In a process of its own: tensorflow_hub warns on import, and brings Keras 2 along.
LIBRARIES = """
import json, sys
import keras, numpy as np, tensorflow_hub as hub, tf_keras

url, folder = sys.argv[1:]
x = np.random.default_rng(0).uniform(size=(3, 16, 16, 3)).astype("float32")
loaded, layer = hub.load(url), hub.KerasLayer(url, trainable=True)
signature = hub.KerasLayer(folder, signature="serving_default", output_key="logits")
assert np.abs(loaded(x, training=True) - loaded(x)).max() > 0.1
assert len(layer.trainable_weights) == len(loaded.trainable_variables) and len(layer.losses) == 1
try:
    keras.Sequential([keras.Input((16, 16, 3)), layer])
    raise AssertionError("Keras 3 takes hub.KerasLayer, and SavedModelLayer is not needed any more")
except ValueError:
    pass
outputs = [np.array(compute(x)).tolist() for compute in (loaded, layer, signature)]
model = tf_keras.Sequential([tf_keras.Input((16, 16, 3)), layer, tf_keras.layers.Dense(2)])
model.compile(tf_keras.optimizers.SGD(0.1, clipnorm=1.0), "mse")
losses = model.fit(x, np.ones((3, 2)), epochs=10, verbose=0).history["loss"]
print(json.dumps({"outputs": outputs, "losses": losses}))
"""


def run(program, folder, *arguments):
    """A program in a process of its own, in a folder, with caches there; what it printed."""
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"TFHUB_CACHE_DIR": f"{folder}/tfhub", "KERAS_VIT_CACHE": f"{folder}/cache"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_tensorflow_hub_and_keras_2_fetch_and_fine_tune_it(saved_model, model, tmp_path):
    archive = export_hub(saved_model, tmp_path / "hub", **NAMES)["archive"].read_bytes()
    with serving(Server()) as server:
        server.answers["/vit/3.tar.gz?tf-hub-format=compressed"] = file(archive)
        printed = run(LIBRARIES, tmp_path / "run", f"{server.url}/vit/3.tar.gz", saved_model)
        assert [path for _, path, _ in server.seen] == ["/vit/3.tar.gz?tf-hub-format=compressed"]
    found = json.loads(printed.splitlines()[-1])
    for outputs in found["outputs"]:
        assert_close(np.array(outputs, "float32"), run_live(model, pixels()), 1e-5)
    assert np.mean(found["losses"][-3:]) < found["losses"][0]


# The programs on the card --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"image_size": (None, None), "patch_size": 56, "position_grid": (2, 2), "num_classes": None},
    ],
)
def test_every_program_on_the_card_runs(options, tmp_path):
    saved = export_saved_model(one_block(**options), tmp_path / "1")
    with serving(Server()) as server:
        facts = Facts(url=f"{server.url}/vit/3.tar.gz")
        files = export_hub(saved, tmp_path / "hub", **NAMES, facts=facts)
        archive = file(files["archive"].read_bytes())
        server.answers["/vit/3.tar.gz"] = server.answers["/vit/3.tar.gz?tf-hub-format=compressed"] = archive
        programs = re.findall(r"```python\n(.*?)```", files["page"].read_text(), re.DOTALL)
        assert len(programs) == 2
        for program in programs:
            run(program, tmp_path)
        asked = {path for _, path, _ in server.seen}
    assert {"/vit/3.tar.gz", "/vit/3.tar.gz?tf-hub-format=compressed"} <= asked
