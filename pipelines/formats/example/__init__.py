"""tf.train.Example: decoded by TensorFlow."""
