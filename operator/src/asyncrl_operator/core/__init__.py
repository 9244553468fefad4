"""What the operator decides: plain Python, without clock, I/O, await or a Kubernetes client."""
