"""Samplers: the whole off-policyness contract of a run, one object each."""
