"""Thin commands: parse arguments, call a stage, print its result."""
