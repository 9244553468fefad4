"""The AsyncRLJob resource (asyncrl.io/v1alpha1): models, defaults, rules, CRD."""
