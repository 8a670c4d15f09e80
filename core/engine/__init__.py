"""Several texts written at once by one model: schedule, draft, run, verify, settle, emit."""
