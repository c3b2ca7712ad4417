"""Recipes, locks, and resolving a lock."""
