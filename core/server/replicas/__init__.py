"""Several model replicas behind one address, run by Ray Serve."""
