"""The locked Debian root, the sandbox around it, and the Python environments inside."""
