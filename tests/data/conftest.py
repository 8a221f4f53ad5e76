import pytest


@pytest.fixture(autouse=True, scope="module")
def _without_grappler(without_grappler):
    """It takes a third of the time of these tests; others train and evaluate with it."""
