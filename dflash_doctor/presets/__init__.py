"""Data that ships with the package: model dimensions, GPUs and plans."""
