"""Reading Kafka: the source, its client, what is fetched, where reading starts, what is committed."""
