"""Several trainers that learn one model: what they exchange, how they agree, and how their state is cut into shares."""
