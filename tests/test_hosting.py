"""The files for the hosting site obey their schemas and agree with the rest of the repository."""

import pathlib
import re
import subprocess
import sys

import yaml
from made.tables import by_table

import keras_vit

ROOT = pathlib.Path(__file__).parents[1]
FORMS = sorted(
    {*(ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")} - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"}
)
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@by_table(
    "schema, files",
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [ROOT / ".github/ISSUE_TEMPLATE/config.yml"]),
        ("dependabot", [ROOT / ".github/dependabot.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_obeys_its_schema(schema, files):
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_pythons_are_those_that_setup_py_allows():
    low, high = re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', (ROOT / "setup.py").read_text()).groups()
    allowed = [f"3.{minor}" for minor in range(int(low), int(high))]
    matrices = []
    for path in WORKFLOWS:
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        strategies = [job["strategy"]["matrix"] for job in jobs if "strategy" in job]
        matrices += [matrix["python"] for matrix in strategies if "python" in matrix]
    assert matrices and all(matrix == allowed for matrix in matrices)


def test_workflows_call_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"^([\w-]+):", makefile, re.MULTILINE)}
    called = {*re.findall(r"make ([\w-]+)", "\n".join(path.read_text() for path in WORKFLOWS))}
    assert {"test", "test-full", "quickstart", "docs", "wheels"} <= called <= targets


def test_each_night_runs_all_tests():
    (text,) = (path.read_text() for path in WORKFLOWS if "schedule" in path.read_text())
    workflow = yaml.safe_load(text)
    parts = re.search(r"^PART \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert workflow["jobs"]["tensorflow"]["strategy"]["matrix"]["part"] == parts
    commands = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    backends = [match[1] for command in commands if (match := re.search(r"BACKENDS=(\w+)", command))]
    assert sorted(backends) == ["jax", "tensorflow"]


def test_pre_commit_runs_the_ruff_of_make_test():
    pinned = re.search(r"^ruff==(.+)$", (ROOT / "requirements-dev.txt").read_text(), re.MULTILINE)[1]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (revision,) = [hook["rev"] for hook in hooks if hook["repo"].endswith("ruff-pre-commit")]
    assert revision == f"v{pinned}"


def test_the_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == keras_vit.__version__
    assert f"## {citation['version']} ({citation['date-released']})" in (ROOT / "CHANGELOG.md").read_text()
