"""Attention and expert kernels behind one interface each; the only package that imports kernel libraries."""
