"""The cluster: what is read of it, and how plans are carried out."""
