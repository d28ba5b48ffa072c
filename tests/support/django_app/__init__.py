"""A Django application with the business tables of the tests."""
