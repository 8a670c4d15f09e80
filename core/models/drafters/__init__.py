"""Networks that draft for a target: what each one computes. Who uses them is in speculation."""
