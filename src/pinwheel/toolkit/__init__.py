"""CUDA toolkits assembled from locked parts."""
