"""The thread that owns an engine, for all that call it: server, library, command line."""
