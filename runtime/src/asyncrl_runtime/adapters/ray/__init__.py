"""Workers in the actors of a Ray cluster. Nothing here imports Ray before a cluster is started."""
