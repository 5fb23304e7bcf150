"""What `kiwi-worker demo` runs: a worker with methods of every kind, the calls, and the table of outcomes."""
