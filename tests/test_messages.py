from made.tables import by_table

from keras_vit.messages import did_you_mean


@by_table(
    "name, names, hint",
    [
        ("augregg", ["finetune", "augreg"], " (did you mean 'augreg'?)"),
        ("Cross-Entropy", ["cross_entropy", "cross_entropy_2"], " (did you mean 'cross_entropy'?)"),
        ("val", ["train", "validation"], " (did you mean 'validation'?)"),
        ("va", ["train", "validation"], ""),
        ("S/16", ["S/16", "S+/16"], " (did you mean 'S/16'?)"),
        ("bfloat", [None, "bfloat16", "float16"], " (did you mean 'bfloat16' or 'float16'?)"),
        (16, ["16"], ""),
        ("", ["a"], ""),
    ],
)
def test_the_most_similar_names_are_suggested(name, names, hint):
    assert did_you_mean(name, names) == hint
