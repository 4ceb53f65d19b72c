"""`millrace serve`: answers TF Serving's REST API with the exports of a model that goes on learning."""
