"""Pure functions from logits, parameters, a seed and a position to a token. numpy only.

Nothing here keeps state or draws "the next" random number, so the token at a position cannot
depend on how often, in what order, or in which batch it was asked for.
"""
