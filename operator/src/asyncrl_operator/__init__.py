"""The operator for AsyncRLJobs on Kubernetes."""

__version__ = "0.1.0"
