"""Facts as data files, each with its source beside it."""
