"""Text to tokens and back, without torch: built-in characters, and tokenizers of the hub."""
