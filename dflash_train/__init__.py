"""Train DFlash block-diffusion drafters against a frozen target."""
