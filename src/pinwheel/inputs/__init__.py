"""Getting locked bytes: store, downloads, archives, patches."""
