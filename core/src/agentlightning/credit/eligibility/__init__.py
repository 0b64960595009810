"""Which recorded calls may be trained, and the reason where one may not."""
