"""The archive: whole records of Kafka's topics in files, which outlive Kafka's retention. Imports no TensorFlow."""
