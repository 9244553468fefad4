"""Where numbers, events, samples and log lines go."""
