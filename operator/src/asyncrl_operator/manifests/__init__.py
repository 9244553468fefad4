"""What the operator renders: plain functions from an accepted job to Kubernetes objects."""
