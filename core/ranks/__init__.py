"""One model on several devices: ranges of its layers in processes of their own, around a ring.

Rank 0 is the process that was started: it has the engine, the embedding, the first layers, the
head and MTP heads. Ranks 1 … hold a range of layers each, with its part of the state. Rows go from
rank to rank through torch.distributed and come back to rank 0; what else ranks are told goes
through pipes. A `RankedBackend` hides all that.
"""
