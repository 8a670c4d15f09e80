"""How far a model is from another: both read the same text, and their distributions are compared.

`spec convert measure` prints it. The figures are those of `llama-perplexity --kl-divergence`.
"""
