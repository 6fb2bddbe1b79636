"""Several systems on the same text: the table of scores with paired tests, and the sentences on which they differ most."""
