"""The bus and the config service, as the tasks of a job use them."""
