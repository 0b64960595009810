"""Options of the driver, and the lines of verl's configuration that they become."""
