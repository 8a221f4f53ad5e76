"""American spelling, as in Keras's documentation."""

import re
import subprocess

BRITISH = re.compile(
    r"colour|neighbour|behaviour|artefact|centre|labelled|grey(?!hound)|"
    r"(?:normal|standard|regular|initial|random|recogn|visual|quant|serial|optim)is(?:e|ing|ation)",
    re.IGNORECASE,
)
KEPT = {
    ("CHANGELOG.md", "normalise"),  # former names
    ("CHANGELOG.md", "standardise"),
    ("keras_vit/cli/parser.py", "visualise"),  # a word that users may type
    ("keras_vit/data/sources/digits_words.py", "grey"),  # in captions, of which the runs in docs are
}


def test_words_have_american_spelling(repository):
    command = ["git", "ls-files", "*.py", "*.md", "*.ipynb", "*.js", "Makefile"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    files = sorted({*listed.stdout.split()} - {"tests/contract/test_spelling.py"})
    assert len(files) > 300
    found = {(file, word) for file in files for word in BRITISH.findall((repository / file).read_text())}
    assert found == KEPT
