"""The user's model: loaded, built, proven, compiled into one call, its variables and metrics. Imports TensorFlow."""
