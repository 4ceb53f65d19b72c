"""With `serve.log`: what servers have answered, scored by the labels that came later, by version."""
