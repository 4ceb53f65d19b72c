"""What the trainer measures and reports about itself. Never imports TensorFlow."""
