"""The recipe of the bundled model: corpus, tokenizer, training, file, figures. Needs `[train]`."""
