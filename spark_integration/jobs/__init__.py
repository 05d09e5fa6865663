"""The pipeline's jobs. Each is a function that takes a Spark session, can be run again after a crash, tells its
progress line by line and returns a summary. `topics pipeline` runs them from the command line."""
