"""What pauses the learning before bad input is learnt: a flood of bad records, a schema that no longer fits."""
