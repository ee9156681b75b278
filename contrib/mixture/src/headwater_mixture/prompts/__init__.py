"""The prompt lists `mixture:train` and `mixture:eval`."""
