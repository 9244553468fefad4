"""What the pumps need of the world, one Protocol each."""
