"""Images of every form: `predict`, training and `serving_bytes` read the same, or all refuse."""

import pytest
from made.encoded import DAMAGED, FORMS, damaged_form, form
from made.sampling import some

NUMBERS = {name: number for number, name in enumerate(FORMS)}
TOLERANCE = 0.3  # of 255


def decoded(limited, tmp_path, suffix, content, number):
    path = tmp_path / f"image.{suffix}"
    path.write_bytes(content)
    how, what = limited.call("decoded", str(path), number)
    assert how == "accepted", what
    return what


@pytest.mark.parametrize("name", some(FORMS, 40))  # The first of four preprocessings alone is fast.
def test_an_image_is_read_alike_or_refused_everywhere(name, limited, tmp_path):
    suffix, content = form(name)
    found = decoded(limited, tmp_path, suffix, content, NUMBERS[name])
    served = found["refused"].pop("serve", None)
    assert not found["refused"] or len(found["refused"]) == 2, found
    by_pillow = content.startswith((b"II", b"MM")) or content[4:8] == b"ftyp"  # TIFF and AVIF
    assert bool(served) == (by_pillow or bool(found["refused"])), (served, found)
    assert found["pixels"] == 0 and found["prepared"] <= TOLERANCE, found


@pytest.mark.parametrize("number", some(range(DAMAGED), 60))
def test_a_damaged_image_is_read_alike_by_all_that_read_it(number, limited, tmp_path):
    name, suffix, content = damaged_form(number)
    found = decoded(limited, tmp_path, suffix, content, number)
    assert found["pixels"] == 0 and found["prepared"] <= TOLERANCE, (name, found)
