"""The meta engine: a step on meta tensors, every allocation that CUDA would make recorded."""
