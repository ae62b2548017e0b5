"""A list made equal to another one."""
