"""The demo: payments through oncebox and through the naive consumer, under kill -9."""
