"""`millrace export`: a version of the model for others to serve, made of a durable checkpoint and proven."""
