"""Several sequences generated at once by one model: schedule, draft, run, verify, emit."""
