"""Capability rules, combos, axis models and checks of arch_matrix.toml."""
