"""Programs that run inside the build root: standard library only, no import of pinwheel."""
