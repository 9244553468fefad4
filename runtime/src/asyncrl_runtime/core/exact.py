"""Exact arithmetic on settings: the one definition is the resource's, whose warnings need it too."""

from asyncrl_api.exact import ceil_product

__all__ = ["ceil_product"]
