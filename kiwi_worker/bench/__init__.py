"""`kiwi-worker bench`: what calls cost through somebody's own middleware."""
