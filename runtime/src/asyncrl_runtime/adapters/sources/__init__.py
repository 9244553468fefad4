"""Where prompts come from: generated tasks, JSON lines, data sets of the hub, reasoning-gym."""
