import pytest
from made.tables import by_table

from keras_vit.weights.class_names import LISTS, PROMPTS, class_names, is_same_class, prompt_templates


def test_imagenets_names_are_in_the_order_of_the_logits():
    names = class_names("imagenet_1k")
    assert isinstance(names, tuple) and len(names) == 1000 and names is class_names("imagenet_1k")
    assert all(name and name == name.strip() and not name.startswith("#") for name in names)
    known = {
        0: "tench, Tinca tinca",
        207: "golden retriever",
        281: "tabby, tabby cat",
        638: "maillot",
        639: "maillot, tank suit",
        999: "toilet tissue, toilet paper, bathroom tissue",
    }
    assert {index: names[index] for index in known} == known


def test_clips_names_are_of_the_same_classes():
    names, synsets = class_names("imagenet_1k_clip"), class_names("imagenet_1k_synsets")
    assert len(names) == 1000
    assert [names[index] for index in (0, 134, 517)] == ["tench", "crane bird", "construction crane"]
    # The others are words of CLIP's authors, such as "crane bird".
    assert sum(map(is_same_class, names, synsets)) == 815


@pytest.mark.parametrize("name, count", [("clip_80", 80), ("clip_7", 7)])
def test_prompts_have_one_place_for_a_name(name, count):
    found = prompt_templates(name)
    assert len({*found}) == count and all(each.count("{}") == 1 for each in found)
    assert {*found} <= {*prompt_templates("clip_80")}


@by_table(
    "name, other, same",
    [
        ("n02123045", "tabby, tabby cat", True),
        ("n02123045", "Tabby_cat", True),
        ("tabby", "tabby, tabby cat", True),
        ("n02123045", "tiger cat", False),
        ("n03710637", "maillot", True),  # 638, whose lemma is also one of 639
        ("n03710637", "maillot, tank suit", False),
        ("n03710721", "tank suit", True),
        ("n02012849", "crane", True),
        ("n03126707", "crane", True),
        ("n02012849", "n03126707", False),
        ("cat", "cat", True),
        ("cat", "Cat", False),
        ("n00000000", "cat", False),
    ],
)
def test_names_mean_the_same_class_if_they_are_equal_or_of_one_synset(name, other, same):
    assert is_same_class(name, other) == is_same_class(other, name) == same


def test_a_text_file_has_one_name_per_line(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("# flowers\ndaisy\n\n rose \n")
    assert class_names(file) == class_names(str(file)) == ("daisy", "rose")


@by_table("content, message", [(b"\n#\n", "holds no class names"), (b"\xff", "not a readable text file")])
def test_a_file_without_names_is_refused(content, message, tmp_path):
    (tmp_path / "names.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        class_names(tmp_path / "names.txt")


@by_table("name", [*LISTS, *(f"prompts_{name}" for name in PROMPTS)])
def test_a_list_comes_with_its_license(name, repository):
    text = (repository / f"keras_vit/weights/{name}.txt").read_text()
    of_clip = ("Copyright (c) 2021 OpenAI", "The above copyright notice and this permission notice")
    of_wordnet = ("WordNet 3.0 Copyright 2006 by Princeton University", "LICENSEE")
    assert all(words in text for words in (of_clip if "clip" in name else of_wordnet))
