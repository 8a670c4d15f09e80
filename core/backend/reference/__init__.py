"""The reference backend: plain torch, float32. It defines what each op means."""
