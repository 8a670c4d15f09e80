"""Training of drafters for a model, on texts that the model writes itself. Needs `[train]`."""
