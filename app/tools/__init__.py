"""What a user runs beside the trainer, one module or package per command."""
