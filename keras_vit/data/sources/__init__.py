"""Data sets by kind of source, one file each; `data/datasets.py` lists them."""
