"""The balance of classes: by weights, or by leaving records out."""
