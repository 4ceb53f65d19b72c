"""With `serve.log`: a share of the predictions as records of a topic."""
