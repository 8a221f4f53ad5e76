import numpy as np
import pytest
from PIL import Image
from reference.comparing import randomize
from reference.small import SMALL

from keras_vit import ImageGPT

ENCODER = {
    **{**SMALL, "num_classes": None, "image_size": 4, "patch_size": 1, "num_layers": 1, "pooling": "gap"},
    **{"palette": 5, "causal": True},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with the models of a finished run."""
    folder = tmp_path_factory.mktemp("complete")
    model = randomize(ImageGPT(ENCODER))
    model.save(folder / "pretrainer.keras")
    model.encoder.save(folder / "model.keras")
    return folder, model


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): np.asarray(Image.open(path)) for path in folder.rglob("*.png")
    }


@pytest.mark.slow
def test_images_are_completed_below_their_first_rows(run, images, keras_vit, tmp_path):
    folder, model = run
    options = ("--rows", 2, "--seed", 3, "--temperature", 0.5, "--top_k", 4)
    done = keras_vit("complete", "--model", folder, images, *options, "--output", tmp_path / "out")
    found = files_in(tmp_path / "out")
    paths = sorted(path for path in images.rglob("*") if path.is_file())
    assert done.stdout == f"{len(paths)} images are in {tmp_path / 'out'}\n"
    expected = model.complete([str(path) for path in paths], 2, temperature=0.5, top_k=4, seed=3)
    assert {*found} == {path.relative_to(images).with_suffix(".png").as_posix() for path in paths}
    for path, image in zip(paths, expected, strict=True):
        np.testing.assert_array_equal(found[path.relative_to(images).with_suffix(".png").as_posix()], image)


@pytest.mark.slow
@pytest.mark.parametrize("count, written", [(1, "1 image is"), (3, "3 images are")])
def test_new_images_are_sampled(count, written, run, keras_vit, tmp_path):
    folder, model = run
    done = keras_vit("complete", "--model", folder, "--count", count, "--output", tmp_path / "out")
    assert done.stdout == f"{written} in {tmp_path / 'out'}\n"
    found = files_in(tmp_path / "out")
    np.testing.assert_array_equal([found[f"{i}.png"] for i in range(count)], model.sample(count))
