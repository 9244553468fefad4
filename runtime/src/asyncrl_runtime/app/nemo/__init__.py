"""Imports the reference's YAML as an AsyncRLJob manifest (CLI-7)."""
