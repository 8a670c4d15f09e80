"""A corpus of texts on disk, with its suffix arrays, for the drafter `suffix`."""
