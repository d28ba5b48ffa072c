"""The demo: payments through oncebox and through a naive consumer, while workers are killed."""
