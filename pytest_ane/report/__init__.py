"""What people read: pure functions of verdicts that yield lines."""
