"""What leaves as a SavedModel or as ONNX, and the proof that it answers as the model does."""
