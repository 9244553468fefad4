"""The operator for AsyncRLJobs on Kubernetes: what it decides and renders; it talks to no cluster yet."""

__version__ = "0.1.0"
