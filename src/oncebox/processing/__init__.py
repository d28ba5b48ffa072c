"""What happens to a batch: claim, run, record, commit."""
