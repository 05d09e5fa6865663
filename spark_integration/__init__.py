"""Spark jobs that read from and write to topics over HTTP: the format `topics` and the pipeline's jobs.

    from spark_integration.session import spark_session

    spark = spark_session("look around")
    events = spark.read.format("topics").option("url", "http://127.0.0.1:4000").option("topic", "events").load()

The format is found by its name because the module `pyspark_topics` is installed beside this package. Nothing here knows
more of the server than its public API.
"""
