"""The readers of the kinds of files that datasets are made of; each yields the rows of one file, undecoded."""
