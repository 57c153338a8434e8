"""Forecast, trace and explain the GPU memory of DFlash drafter training."""

__version__ = "0.1.0"
