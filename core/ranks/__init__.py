"""One model on several devices of one process: each one, a rank, holds a range of its layers.

Rank 0 has the embedding, the first layers, the head and all drafters. The residual rows of a step
are copied from rank to rank and back to rank 0. A `RankedBackend` hides all that.
"""
