"""Whether the answers are true: calibration of probabilities, confusion of classes, quantiles of residuals."""
