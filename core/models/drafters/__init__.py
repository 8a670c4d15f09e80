"""Networks that draft for a target: what each one computes. Speculation uses them."""
