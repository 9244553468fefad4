"""The operator that brings AsyncRLJobs to life on Kubernetes."""
