"""Blocks of `spec`, one module per group."""
