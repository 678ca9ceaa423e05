"""How a job runs: source -> audio -> engine -> writer, the run directory, and Ray to make one machine many."""
