"""Hold the frozen target, the drafter, its masks and its loss."""
