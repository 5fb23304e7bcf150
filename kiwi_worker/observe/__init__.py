"""Seeing how workers are: health over a file, a port and systemd, metrics, traces.

Nothing here knows a protocol: all is made from `Engine.snapshot`. Each part is loaded when it is asked for.
"""
