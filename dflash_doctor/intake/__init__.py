"""Plan files, flags, model configurations and GPUs become records here."""
