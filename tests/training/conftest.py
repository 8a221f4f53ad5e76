from made.runs import finished, labeled  # noqa: F401
