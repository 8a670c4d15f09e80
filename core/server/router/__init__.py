"""Several models behind one address, each loaded when a request names it."""
