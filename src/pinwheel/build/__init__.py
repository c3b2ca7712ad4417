"""Planning, compiling, finishing and proving a wheel."""
