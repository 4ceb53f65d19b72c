"""The sections of the config file, one module each."""
