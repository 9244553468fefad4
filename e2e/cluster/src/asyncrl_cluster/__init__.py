"""A real Kubernetes on one machine: real components, nodes that are namespaces, no Docker."""
