"""What a user runs beside the trainer, one module or package per verb; and what these tools share.

Shared are `child_process` (start, watch and end a process), `traffic` (write and read known records) and
`service_client` (ask a running service).
"""
