"""From a row of logits to a token: filters, penalties, grammars, noise. numpy only.

Randomness is a function of seed, sequence, position and token id, never "the next" number, and
what a sampler remembers depends on accepted tokens only. So the token at a position cannot depend
on how often, in what order, or in which batch it is computed.

`sampler.py` is the way in. The road of a row: `chain.py` (what, in which order), `adjust.py`
(bias, `penalties.py`, `dry.py`), `transforms.py` on `candidates.py`, `adaptive.py`, `draw.py` with
`noise.py`. `grammar.py` restricts it before all that, with `gbnf.py` and `gbnf_lark.py` below.
"""
