"""What Prometheus is told: the catalogue of the metrics, and the readings behind them."""
