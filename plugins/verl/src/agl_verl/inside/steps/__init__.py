"""A step inside verl: its rows from the driver, verl's queue, and its workers watched."""
