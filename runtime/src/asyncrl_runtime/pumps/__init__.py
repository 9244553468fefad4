"""The loops that keep a run going, and what they wait on."""
