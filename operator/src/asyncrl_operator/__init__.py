"""The operator for AsyncRLJobs on Kubernetes: a version only, the handlers come later."""

__version__ = "0.1.0"
