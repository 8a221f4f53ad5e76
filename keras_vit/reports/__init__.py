"""HTML reports of runs, evaluations and models."""
