"""Several replicas of a server behind one address."""
