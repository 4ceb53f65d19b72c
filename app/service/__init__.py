"""The trainer's wiring: settings in, a running service out."""
