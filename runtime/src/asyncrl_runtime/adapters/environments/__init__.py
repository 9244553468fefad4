"""What scores completions and answers turns."""
